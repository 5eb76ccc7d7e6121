"""A model that writes token by token, loaded: sequences are started, run further step by step, and released."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from alula.core.tensor import Feeds

Logits: TypeAlias = npt.NDArray[np.float32]

NOTHING_GIVEN: Feeds = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """How much a decoding session may hold at once: sequences, and tokens of all of them in blocks of so many."""

    sequences: int
    blocks: int
    block_tokens: int

    @property
    def tokens(self) -> int:
        """What the cache holds."""
        return self.blocks * self.block_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """The bytes that a session takes of memory for every token in its cache, and for every sequence besides."""

    token_bytes: int
    sequence_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Tokens to run behind what the session holds of a sequence; `answers` where the logits of the last are wanted."""

    sequence: int
    tokens: tuple[int, ...]
    answers: bool


IMAGE, IMAGE_ROWS = "image", "image_rows"
"""Inputs of a decoder that sees: rows that a vision part made, and which of them takes a token's place, -1 for none."""

PATCHES, IMAGE_AT, PLACES = "patches", "image_at", "places"
"""What a sequence with images is started with: "patches.0", "patches.1" and so on of one image each, which tokens of
its prompt stand for them, and the places [axes, length] of all its tokens."""

_OWN = frozenset({"input_ids", "position_ids", "attention_mask", "answers"})
_SEEN = frozenset({IMAGE, IMAGE_ROWS})


def is_alone(inputs: Iterable[str]) -> bool:
    """Whether a graph with inputs of these names takes a past of its own, and nothing of an encoder besides.

    What stands for images in a prompt is in the places of tokens, and not beside them.
    """
    names = set(inputs)
    past = {name for name in names if name.startswith("past.")}
    return bool(past) and names - past in (_OWN, _OWN | _SEEN)


class Decoding(Protocol):
    """The stateful kind of session: keys and values stay with the engine, opaque to the caller.

    Not thread-safe: one owner at a time. A sequence is a number that the caller chooses.
    """

    @property
    def vocabulary(self) -> int:
        """How many logits a token has."""
        ...

    @property
    def room(self) -> Room:
        """What it may hold; more is for the caller to keep out, and raises `RunError` here."""
        ...

    def start(self, sequence: int, given: Feeds = NOTHING_GIVEN) -> None:
        """Begin a sequence; `given` is what is looked at once, such as "input_ids" [1, source] of an encoder."""
        ...

    def step(self, work: Sequence[Work]) -> Logits:
        """Run the tokens of some started sequences, each named once: [those that answer, vocabulary], in their order.

        Prompts may come in chunks and beside sequences that go on by one token. An error leaves none of the
        sequences named usable but for `release`.
        """
        ...

    def release(self, sequence: int) -> None:
        """Forget a sequence; one that is not here is none of the session's business."""
        ...

    def close(self) -> None:
        """Release the memory. Safe to call twice; `step` afterwards raises `RunError`."""
        ...
