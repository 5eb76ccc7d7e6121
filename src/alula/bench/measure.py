"""Engines measured in turns in one process, so that the machine's drift and neighbours meet all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from alula.bench.rows import BenchRow, RatioRow
from alula.bench.statistics import latency, ratio
from alula.core.drawn import fill
from alula.core.engine import Session
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.tensor import Feeds

Clock: TypeAlias = Callable[[], int]
"""Nanoseconds since some moment, such as `time.perf_counter_ns`."""

Times: TypeAlias = Sequence[Sequence[float]]
"""Milliseconds of each counted call of one engine, by round."""


@runtime_checkable
class Begins(Protocol):
    """A session that has to be made ready for a turn."""

    def begin(self) -> None:
        """Make ready; not timed."""
        ...


Shape: TypeAlias = tuple[int, ...]
"""Sizes of a model's axes in their order: rows and tokens for text, rows alone for images of a fixed size."""

BASELINE = "torch"
"""The engine that others are compared with where it takes part; otherwise the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """How often to measure.

    In each round every engine has one turn: one call that is not counted, in which the threads of the engine before
    fall asleep and caches fill, then `calls` that are. After `seconds` no further round is begun, `least` aside.
    """

    rounds: int = 30
    calls: int = 4
    least: int = 6
    seconds: float = 20.0
    warm_up: int = 3

    def __post_init__(self) -> None:
        if min(self.rounds, self.calls, self.least) < 1:
            raise InputError(
                f"need at least one round and one call, got {self.rounds}, {self.least} and {self.calls}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """A session that takes part, and what is known of it besides its speed."""

    engine: str
    precision: str
    session: Session
    load_ms: float | None = None
    peak_host_bytes: int | None = None
    peak_device_bytes: int | None = None
    metric: str | None = None
    worst: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Rows for every contender and shape, and their speed against the baseline."""

    rows: tuple[BenchRow, ...]
    ratios: tuple[RatioRow, ...]


def measure(
    contenders: Sequence[Contender],
    spec: ModelSpec,
    shapes: Sequence[Shape],
    turns: Turns,
    clock: Clock = time.perf_counter_ns,
) -> Measured:
    """Measure every contender on every shape, in turns, and compare them round by round."""
    if not contenders:
        raise InputError("nothing to measure; at least one session is needed")
    rows: list[BenchRow] = []
    ratios: list[RatioRow] = []
    for shape in shapes:
        items = dict(zip(spec.parts[0].axes, shape, strict=True)).get("batch", 1)
        measured = measure_calls(
            contenders, full_feeds(spec, shape), (shape_name(shape), items), turns, clock
        )
        rows += measured.rows
        ratios += measured.ratios
    return Measured(rows=tuple(rows), ratios=tuple(ratios))


def measure_calls(
    contenders: Sequence[Contender],
    feeds: Feeds,
    named: tuple[str, int],
    turns: Turns,
    clock: Clock = time.perf_counter_ns,
) -> Measured:
    """The same call to every contender, in turns; it is `named` by its shape and how many items it answers."""
    times = in_turns([c.session for c in contenders], feeds, turns, clock)
    rows = [_row(c, named, t) for c, t in zip(contenders, times, strict=True)]
    return Measured(rows=tuple(rows), ratios=tuple(_ratios(rows, times)))


def in_turns(
    sessions: Sequence[Session], feeds: Feeds, turns: Turns, clock: Clock
) -> list[list[list[float]]]:
    """Times in ms by session, round and call: A B C, A B C, ... after a warm-up that is not counted."""
    for session in sessions:
        _make_ready(session)
        for _ in range(turns.warm_up):
            session.run(feeds)
    times: list[list[list[float]]] = [[] for _ in sessions]
    begun = clock()
    for done in range(turns.rounds):
        if done >= turns.least and clock() - begun > turns.seconds * 1e9:
            break
        for session, kept in zip(sessions, times, strict=True):
            _make_ready(session)
            session.run(feeds)
            kept.append([_timed(session, feeds, clock) for _ in range(turns.calls)])
    return times


def _make_ready(session: Session) -> None:
    if isinstance(session, Begins):
        session.begin()


def full_feeds(spec: ModelSpec, shape: Shape, seed: int = 0) -> Feeds:
    """Random ids, or pixels, of one shape with nothing masked: no engine can gain by skipping padding."""
    part, rng = spec.parts[0], np.random.default_rng(seed)
    if len(shape) != len(part.axes):
        raise InputError(
            f"shape {shape_name(shape)}; {spec.name} has {len(part.axes)} axes: {', '.join(part.axes)}"
        )
    sizes = dict(zip(part.axes, shape, strict=True))
    if not spec.reads_text:
        return {tensor.name: fill(rng, tensor, sizes) for tensor in part.inputs}
    ids = rng.integers(0, spec.vocab_size, size=shape)
    values = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    nothing = np.zeros_like(ids)
    return {t.name: values.get(t.name, nothing).astype(t.dtype) for t in spec.parts[0].inputs}


def shape_name(shape: Shape) -> str:
    """A shape as tables and files name it: "8x128"; "fixed" where no axis varies."""
    return "x".join(str(size) for size in shape) or "fixed"


def _timed(session: Session, feeds: Feeds, clock: Clock) -> float:
    begun = clock()
    session.run(feeds)
    return (clock() - begun) / 1e6


def _row(contender: Contender, named: tuple[str, int], times: Times) -> BenchRow:
    shape, items = named
    calls = latency([time_ms for turn in times for time_ms in turn])
    return BenchRow(
        engine=contender.engine,
        precision=contender.precision,
        shape=shape,
        runs=calls.runs,
        p50_ms=calls.p50_ms,
        p90_ms=calls.p90_ms,
        p99_ms=calls.p99_ms,
        items_per_s=items * 1e3 / calls.p50_ms,
        load_ms=contender.load_ms,
        peak_host_bytes=contender.peak_host_bytes,
        peak_device_bytes=contender.peak_device_bytes,
        metric=contender.metric,
        worst=contender.worst,
    )


def _ratios(rows: Sequence[BenchRow], times: Sequence[Times]) -> list[RatioRow]:
    """Every other contender against the baseline, by the median of each turn."""
    base = next((index for index, row in enumerate(rows) if row.engine == BASELINE), 0)
    turns = [[median(turn) for turn in by_round] for by_round in times]
    return [
        RatioRow(
            shape=row.shape,
            engine=row.label,
            baseline=rows[base].label,
            ratio=ratio(turns[base], turns[index]),
        )
        for index, row in enumerate(rows)
        if index != base
    ]
