"""What is minimised, on one batch: answers, what stands in every cell of a page, and where the next character is."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.batches import SLOTS, Batch
from training.canvas import INK, PAPER
from training.model import Watched, normalised, read, see
from training.sights import CELL
from training.wear import chosen, worn

_COUNTED = (torch.int16, torch.int32)


class Losses(NamedTuple):
    """Mean cross entropies of answers, of the cells' characters and of where to look; the share of right tokens."""

    answers: Tensor
    cells: Tensor
    looks: Tensor
    right: Tensor


class Speller(nn.Module):
    """Names the characters of a cell from its token alone; not part of what is shipped."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.slots = nn.Linear(hidden, SLOTS * hidden)

    def forward(self, tokens: Tensor, cells: Tensor, slots: Tensor, words: Tensor) -> Tensor:
        """Tokens of cells laid flat [cells, hidden], which of them, which character, to logits."""
        states = self.slots(tokens).reshape(len(tokens), SLOTS, -1)[cells, slots]
        return functional.linear(states, words)


def moved(batch: Batch, device: torch.device, chance: int | None = None) -> Batch:
    """The batch on a device; whole numbers as indices. With a chance, a number, its drawings are made worn pages."""
    there = Batch(*(each.to(device, non_blocking=True) for each in batch))
    there = Batch(*(each.long() if each.dtype in _COUNTED else each for each in there))
    if chance is None:
        return there
    pages, sides = len(batch.levels), (int(batch.sides[0]), int(batch.sides[1]))
    wear = chosen(pages, torch.Generator().manual_seed(chance))
    noise = torch.randn(pages, *sides, device=device, generator=torch.Generator(device).manual_seed(chance))
    return there._replace(levels=worn(there.levels, batch.turn, sides, wear, noise))


def pixels_of(levels: Tensor, paper: Tensor, ink: Tensor) -> Tensor:
    """Pages as the model takes them, coloured as `render.coloured` does: [pages, 3, height, width]."""
    share = (levels.float()[..., None] - PAPER) / (INK - PAPER)
    blank, full = paper.float()[:, None, None], ink.float()[:, None, None]
    return normalised((blank + (full - blank) * share).clamp(0, 255).round())


def embedded(model: Any, ids: Tensor, seen: Tensor, image: int) -> Tensor:
    """Embeddings of prompts [pages, length, hidden], the images' tokens in the places that wait for them."""
    words: Tensor = model.model.language_model.embed_tokens(ids).float()
    here = (ids == image)[..., None]
    return words.masked_scatter(here, seen.float())


def losses(model: Any, speller: Speller, batch: Batch) -> Losses:
    """All losses of a batch that is on the model's device."""
    seen = see(model, pixels_of(batch.levels, batch.paper, batch.ink))
    words = model.model.language_model.embed_tokens.weight
    watched: Watched = []
    x = embedded(model, batch.ids, seen, model.config.image_token_id)
    states = read(model, x, batch.places, watched=watched)
    logits = functional.linear(states.flatten(0, 1)[batch.at], words).float()
    named = speller(_cells_of(seen, batch), batch.cells, batch.slots, words).float()
    return Losses(
        answers=functional.cross_entropy(logits, batch.wanted),
        cells=functional.cross_entropy(named, batch.spelled),
        looks=_looks(*watched[-2], batch),
        right=(logits.argmax(-1) == batch.wanted).float().mean(),
    )


def _looks(queries: Tensor, keys: Tensor, batch: Batch) -> Tensor:
    """How surprised the first head of a layer is by where the next character is, when it looks at the page alone."""
    down, across = (side // CELL for side in batch.levels.shape[1:])
    query, key = queries[:, 0], keys[:, 0]
    squares = batch.first[:, None] + torch.arange(down * (across + 1), device=batch.first.device)
    there = key.gather(1, squares[..., None].expand(-1, -1, key.shape[-1]))
    scores = (query @ there.transpose(1, 2)).flatten(0, 1)[batch.looking].float() * key.shape[-1] ** -0.5
    return functional.cross_entropy(scores, batch.where, reduction="sum") / max(1, len(batch.where))


def _cells_of(seen: Tensor, batch: Batch) -> Tensor:
    """The tokens of squares alone, without those that begin and end an image and a row, laid flat."""
    down, across = (side // CELL for side in batch.levels.shape[1:])
    return seen[:, 1:-1].reshape(len(seen), down, across + 1, -1)[:, :, :-1].flatten(0, 2)
