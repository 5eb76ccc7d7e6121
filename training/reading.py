"""What the model says of pages, greedily, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from alula.codecs.places import places_of
from training.batches import prompt_ids
from training.learning import embedded, pixels_of
from training.model import Past, read, see, step
from training.render import Page
from training.sights import CELL
from training.tokenizer import ASSISTANT, DONE, PAD, build, id_of


@torch.no_grad()
def answers(model: Any, pages: Sequence[Page], *, most: int = 512, rows: int = 64) -> list[str]:
    """The answer to every page, of at most so many tokens; so many rows are written together."""
    return [
        answer
        for first in range(0, len(pages), rows)
        for answer in _together(model, pages[first : first + rows], most)
    ]


class _Asked(NamedTuple):
    """Prompts that were read: their past, tokens of each, and logits of what comes next."""

    past: Past
    lengths: Tensor
    logits: Tensor


def _together(model: Any, pages: Sequence[Page], most: int) -> list[str]:
    """Answers to pages, of which those of one shape are looked at together, and all are answered together."""
    tokenizer = build()
    ends = [id_of(tokenizer, each) for each in (ASSISTANT, DONE)]
    shapes = [page.shape for page in pages]
    order = sorted(range(len(pages)), key=lambda at: shapes[at])
    asked = [
        _asked(model, [pages[at] for at in order if shapes[at] == shape]) for shape in sorted(set(shapes))
    ]
    lengths = torch.cat([each.lengths for each in asked])
    past = _side_by_side([each.past for each in asked], int(lengths.max()) + most)
    words = model.model.language_model.embed_tokens.weight
    chosen = torch.cat([each.logits for each in asked]).argmax(-1)
    said, stops = [chosen], torch.tensor(ends, device=model.device)
    done = torch.isin(chosen, stops)
    for number in range(1, most):
        if number % 8 == 0 and bool(done.all()):
            break
        x = model.model.language_model.embed_tokens(chosen)[:, None].float()
        chosen = functional.linear(step(model, x, lengths, past)[:, 0], words).argmax(-1)
        lengths = lengths + 1
        said.append(chosen)
        done |= torch.isin(chosen, stops)
    texts = [_text(tokenizer, row, ends) for row in torch.stack(said, 1).tolist()]
    return [text for _, text in sorted(zip(order, texts, strict=True))]


def _side_by_side(pasts: Sequence[Past], most: int) -> Past:
    """Pasts of different lengths as one, with room for so many tokens."""

    def joined(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        return [
            torch.cat([functional.pad(each, (0, 0, 0, most - each.shape[2])) for each in layer])
            for layer in zip(*parts, strict=True)
        ]

    return Past(keys=joined([each.keys for each in pasts]), values=joined([each.values for each in pasts]))


def _asked(model: Any, pages: Sequence[Page]) -> _Asked:
    """Look at pages of one shape, and read what is asked of each."""
    device, image = model.device, model.config.image_token_id
    pad = id_of(build(), PAD)
    width, height = pages[0].shape
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
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    last = states[torch.arange(len(pages), device=device), lengths - 1]
    return _Asked(past=past, lengths=lengths, logits=functional.linear(last, words))


def _coloured(pages: Sequence[Page]) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.from_numpy(np.stack([page.levels for page in pages])),
        torch.tensor([page.paper for page in pages]),
        torch.tensor([page.ink for page in pages]),
    )


def _text(tokenizer: Any, ids: list[int], ends: Sequence[int]) -> str:
    upto = next((at for at, token in enumerate(ids) if token in ends), len(ids))
    return str(tokenizer.decode(ids[:upto], skip_special_tokens=False))
