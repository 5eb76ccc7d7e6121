"""How fast a model writes: prompts up to their first token, and a token of each of several answers side by side.

A shape is `(sequences, prompt)`, named 8x128, or `(sequences, prompt, new)`, named 8x128+32. Where an encoder reads the
prompt, the answer begins behind nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from alula.bench import Shape
from alula.core.decoding import Decoding, Room, Work
from alula.core.engine import Engine
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.core.tensor import Feeds
from alula.engines import open_decoding

if TYPE_CHECKING:
    from alula.engines.torch_writing import Answers, TorchWriter

Ints: TypeAlias = npt.NDArray[np.int64]

USUAL: tuple[Shape, ...] = ((1, 128), (1, 512), (1, 128, 32), (8, 128, 32))

TURN = 5
"""Tokens that one turn of measuring writes: one that is not counted, and four that are."""

BLOCK = 16


class Writer(Protocol):
    """A model that goes on with rows of tokens, all of one length, by the best token of each."""

    def begin(self, tokens: Ints, source: Ints | None) -> None:
        """Read prompts, up to the first token of each answer; what was written before is forgotten."""
        ...

    def step(self) -> None:
        """Write one token more of each answer."""
        ...

    def close(self) -> None:
        """Release the model."""
        ...


class EngineWriter:
    """Engines with a cache for as much as these shapes take."""

    def __init__(
        self, engines: Mapping[str, Engine], spec: ModelSpec, shapes: Sequence[Shape], threads: int = 0
    ) -> None:
        self._decoding: Decoding = open_decoding(engines, _room(spec, shapes), threads=threads)
        self._best: list[int] = []

    def begin(self, tokens: Ints, source: Ints | None) -> None:
        """Start every row, and run all prompts in one step."""
        for at in range(len(self._best)):
            self._decoding.release(at)
        for at in range(len(tokens)):
            self._decoding.start(at, {} if source is None else {"input_ids": source[at : at + 1]})
        self._run([tuple(row) for row in tokens.tolist()])

    def step(self) -> None:
        """A token of each row."""
        self._run([(token,) for token in self._best])

    def close(self) -> None:
        """Release the engines."""
        self._decoding.close()

    def _run(self, rows: Sequence[tuple[int, ...]]) -> None:
        work = [Work(sequence=at, tokens=row, answers=True) for at, row in enumerate(rows)]
        self._best = self._decoding.step(work).argmax(-1).tolist()


class TorchPace:
    """PyTorch eager, with the cache that transformers keeps."""

    def __init__(self, writer: TorchWriter) -> None:
        self._writer = writer
        self._answers: Answers | None = None

    def begin(self, tokens: Ints, source: Ints | None) -> None:
        """Read prompts."""
        self._answers = self._writer.begin(tokens, source)

    def step(self) -> None:
        """A token of each row."""
        assert self._answers is not None
        self._answers.step()

    def close(self) -> None:
        """Release the model."""
        self._writer.close()


class Paced:
    """One shape of a writer as a session: a run reads the prompts, or where it has new tokens writes one of each row.

    Answers that have been written are begun again, between turns. Whoever opened the writer closes it.
    """

    inputs = outputs = ()

    def __init__(self, writer: Writer, spec: ModelSpec, shape: Shape) -> None:
        self._writer, self._new = writer, sum(shape[2:])
        self._left = 0
        rows, length = shape[:2]
        ids = np.random.default_rng(0).integers(0, spec.vocab_size, (rows, length))
        starts = np.full((rows, 1), spec.start_id)
        self._given = (starts, ids) if spec.reads_source else (ids, None)

    def begin(self) -> None:
        """Begin answers that a turn would write to their ends; not timed."""
        if self._new and self._left < TURN:
            self._writer.begin(*self._given)
            self._left = self._new

    def run(self, feeds: Feeds) -> Feeds:
        """Once; `feeds` say nothing."""
        if self._new:
            self._writer.step()
            self._left -= 1
        else:
            self._writer.begin(*self._given)
        return {}

    def close(self) -> None:
        """Nothing: other shapes go on with the writer."""


class Pacing:
    """A writer as a session that runs the shape it is fed, once; it owns the writer."""

    inputs = outputs = ()

    def __init__(self, writer: Writer, spec: ModelSpec) -> None:
        self._writer, self._spec = writer, spec

    def at(self, shape: Shape) -> Paced:
        """One shape, again and again."""
        return Paced(self._writer, self._spec, shape)

    def run(self, feeds: Feeds) -> Feeds:
        """The shape that is fed."""
        paced = self.at(tuple(feeds["shape"].tolist()))
        paced.begin()
        return paced.run({})

    def close(self) -> None:
        """Release the model."""
        self._writer.close()


def pace_name(shape: Shape) -> str:
    """A shape as tables have it."""
    rows, prompt, *new = shape
    return f"{rows}x{prompt}" + "".join(f"+{count}" for count in new)


def items_of(shape: Shape) -> int:
    """Tokens that one run reads or writes."""
    rows, prompt, *new = shape
    return rows if new else rows * prompt


def paces_of(spec: ModelSpec, profiles: Sequence[Profile], asked: Sequence[Shape]) -> tuple[Shape, ...]:
    """The shapes asked for, which every engine must take, or those of the usual ones that every engine takes."""
    for shape in asked:
        if why := next((why for profile in profiles if (why := _refused(spec, profile, shape))), ""):
            raise InputError(why)
    if asked:
        return tuple(asked)
    usual = [s for s in USUAL if not any(_refused(spec, profile, s) for profile in profiles)]
    if usual:
        return tuple(usual)
    half = min(_most(spec, profile) for profile in profiles) // 2
    few = ((1, half), (1, half, TURN))
    return tuple(s for s in few if not any(_refused(spec, profile, s) for profile in profiles))


def _most(spec: ModelSpec, profile: Profile) -> int:
    """The longest prompt that an engine takes."""
    return profile.axes["source"].max if spec.reads_source else profile.holds


def _refused(spec: ModelSpec, profile: Profile, shape: Shape) -> str:
    """Why a shape is not for an engine; nothing if it is."""
    if len(shape) not in {2, 3}:
        return f"shape {'x'.join(map(str, shape))}; {spec.name} writes text: SEQUENCESxPROMPT, or SEQUENCESxPROMPT+NEW"
    _, prompt, *new = shape
    name, count = f"shape {pace_name(shape)}", sum(new)
    if new and count < TURN:
        return f"{name}: {count} new tokens, expected at least {TURN}"
    if prompt > (most := _most(spec, profile)):
        return f"{name}: prompts of {prompt} tokens; the engine reads {most}"
    if (total := _held(spec, shape)) > (most := profile.holds):
        return f"{name}: {total} tokens in all; the engine holds {most}"
    return ""


def _held(spec: ModelSpec, shape: Shape) -> int:
    """Tokens of one row that a decoder keeps."""
    return sum(shape[2:]) + (1 if spec.reads_source else shape[1])


def _room(spec: ModelSpec, shapes: Sequence[Shape]) -> Room:
    blocks = max(shape[0] * (_held(spec, shape) // BLOCK + 1) for shape in shapes)
    return Room(sequences=max(shape[0] for shape in shapes), blocks=blocks, block_tokens=BLOCK)
