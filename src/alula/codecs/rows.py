"""One request as token ids, and many of them as one padded batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.core.tensor import Array, Feeds

SPECIAL = -1
"""The source and the word of a token that comes from no text."""


STEP = 4
"""Lengths are padded to multiples of this at least; long ones to multiples of an eighth of the power of two below."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One request, tokenised: at most as long as the model takes, special tokens included.

    `offsets` are code points of the text a token comes from, `sources` says which text that is (0, 1 or
    `SPECIAL`), `words` numbers its words. All three are empty for rows made from bare ids.
    `given` counts the tokens before anything was cut off, of a long text those that were read. `unpooled` asks for the
    states of the tokens, too, of a model that gives them.
    """

    ids: tuple[int, ...]
    type_ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...] = ()
    sources: tuple[int, ...] = ()
    words: tuple[int, ...] = ()
    given: int = 0
    unpooled: bool = False

    @property
    def truncated(self) -> bool:
        """Whether tokens were cut off."""
        return self.given > len(self.ids)


def collate(rows: Sequence[Row], spec: ModelSpec, length: int | None = None) -> Feeds:
    """Rows as the int64 arrays the model's encoder takes, padded on the right to the longest or to `length`."""
    longest = max((len(row.ids) for row in rows), default=0)
    width = max(longest, 1) if length is None else length
    if not rows or longest > width or width > spec.max_length:
        raise InputError(
            f"{len(rows)} rows of up to {longest} tokens cannot be padded to {width}; "
            f"expected at least one row, and at most {spec.max_length} tokens"
        )
    ids = np.full((len(rows), width), spec.pad_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    types = np.zeros_like(ids)
    for at, row in enumerate(rows):
        count = len(row.ids)
        ids[at, :count] = row.ids
        types[at, :count] = row.type_ids
        mask[at, :count] = 1
    made: dict[str, Array] = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {tensor.name: _known(made, tensor.name) for tensor in spec.part("encoder").inputs}


def within(spec: ModelSpec, profile: Profile) -> ModelSpec:
    """The model with no more length than its engine was built for."""
    return replace(spec, max_length=min(spec.max_length, profile.axes["length"].max))


def stepped(length: int) -> int:
    """The length that a row of so many tokens is padded to at least: at most an eighth more, or `STEP` less one.

    OpenVINO keeps kernels for every length it has met, so there must not be too many: these are 36 up to 256.
    """
    step = max(STEP, (1 << max(length - 1, 0).bit_length()) // 16)
    return -(-length // step) * step


def padded_lengths(most: int) -> tuple[int, ...]:
    """Every length that rows of at most so many tokens are padded to, ascending."""
    return tuple(sorted({min(stepped(length), most) for length in range(1, most + 1)}))


def fit(rows: Sequence[Row], spec: ModelSpec, profile: Profile) -> Feeds:
    """Rows as a batch that the engine takes: the length `stepped`, both axes within the profile.

    An engine with a smallest batch gets the last row again; `row_outputs` leaves out what it says about those.
    """
    longest = max((len(row.ids) for row in rows), default=0)
    length = min(profile.axes["length"].max, spec.max_length, stepped(longest))
    if profile.most("batch", {"length": length}) < len(rows):
        length = longest  # one of several profiles may end between two steps
    sizes = profile.padded({"batch": len(rows), "length": length})
    again = [row for row in rows[-1:] for _ in range(sizes["batch"] - len(rows))]
    return collate([*rows, *again], spec, sizes["length"])


def _known(made: Feeds, name: str) -> Array:
    if name not in made:
        raise InputError(f"the model takes {name!r}, which text does not give; there are {sorted(made)}")
    return made[name]


def row_outputs(outputs: Feeds, rows: Sequence[Row], spec: ModelSpec) -> list[dict[str, Array]]:
    """The outputs of a batch, one mapping per row, with the padding of token-level outputs cut away."""
    along_length = {
        tensor.name for tensor in spec.part("encoder").outputs if tensor.shape[1:2] == ("length",)
    }
    return [
        {
            name: array[at, : len(row.ids)] if name in along_length else array[at]
            for name, array in outputs.items()
        }
        for at, row in enumerate(rows)
    ]
