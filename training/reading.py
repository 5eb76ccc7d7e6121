"""What the model says of pages, greedily, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from alula.codecs.places import places_of
from training.batches import CELL, prompt_ids
from training.learning import embedded, pixels_of
from training.model import Past, read, see, step
from training.render import Page
from training.tokenizer import ASSISTANT, DONE, PAD, build, id_of


@torch.no_grad()
def answers(model: Any, pages: Sequence[Page], *, most: int = 512, rows: int = 64) -> list[str]:
    """The answer to every page, of at most so many tokens; pages of one shape are read together."""
    found: dict[int, str] = {}
    shapes = [page.levels.shape for page in pages]
    for shape in dict.fromkeys(shapes):
        alike = [at for at, each in enumerate(shapes) if each == shape]
        for first in range(0, len(alike), rows):
            chosen = alike[first : first + rows]
            found |= zip(chosen, _together(model, [pages[at] for at in chosen], most), strict=True)
    return [found[at] for at in range(len(pages))]


def _together(model: Any, pages: Sequence[Page], most: int) -> list[str]:
    """Answers to pages of one shape."""
    tokenizer = build()
    device, image = model.device, model.config.image_token_id
    pad, *ends = (id_of(tokenizer, each) for each in (PAD, ASSISTANT, DONE))
    height, width = pages[0].levels.shape
    prompts = [prompt_ids(page.prompt, (width, height)) for page in pages]
    length = max(map(len, prompts))
    ids = torch.tensor([[*prompt, *[pad] * (length - len(prompt))] for prompt in prompts], device=device)
    places = torch.zeros((4, len(pages), length), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        places[:, row, : len(prompt)] = torch.from_numpy(
            places_of(prompt, image, [(height // CELL, width // CELL)])
        )
    past, words = Past(), model.model.language_model.embed_tokens.weight
    seen = see(model, pixels_of(*(each.to(device) for each in _coloured(pages))))
    states = read(model, embedded(model, ids, seen, image), places.to(device), past)
    past.keys = [functional.pad(each, (0, 0, 0, most)) for each in past.keys]
    past.values = [functional.pad(each, (0, 0, 0, most)) for each in past.values]
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    chosen = functional.linear(states[torch.arange(len(pages)), lengths - 1], words).argmax(-1)
    said, stops = [chosen], torch.tensor(ends, device=device)
    done = torch.isin(chosen, stops)
    for number in range(1, most):
        if number % 8 == 0 and bool(done.all()):
            break
        x = model.model.language_model.embed_tokens(chosen)[:, None].float()
        chosen = functional.linear(step(model, x, lengths, past)[:, 0], words).argmax(-1)
        lengths = lengths + 1
        said.append(chosen)
        done |= torch.isin(chosen, stops)
    return [_text(tokenizer, row, ends) for row in torch.stack(said, 1).tolist()]


def _coloured(pages: Sequence[Page]) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.from_numpy(np.stack([page.levels for page in pages])),
        torch.tensor([page.paper for page in pages]),
        torch.tensor([page.ink for page in pages]),
    )


def _text(tokenizer: Any, ids: list[int], ends: Sequence[int]) -> str:
    upto = next((at for at, token in enumerate(ids) if token in ends), len(ids))
    return str(tokenizer.decode(ids[:upto], skip_special_tokens=False))
