"""One case: every worker opened by itself, compared on every shape, then timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Protocol

from alula.bench import shape_name
from alula.core.model import ModelSpec
from gpu_bench import drawn
from gpu_bench.cases import BASELINE, CONTENDERS, Case, Shape
from gpu_bench.results import Opened, Result, Turns, Way
from gpu_bench.wire import WorkerError

Note = Callable[[str], None]
Keep = Callable[[Result], None]
"""What becomes of a result after each shape, not being whole yet."""

SEED = 10


class Asked(Protocol):
    """A worker."""

    def ask(self, limit_s: float, **message: Any) -> dict[str, Any]:
        """Ask and wait."""
        ...

    def send(self, **message: Any) -> None:
        """Ask."""
        ...

    def receive(self, limit_s: float) -> dict[str, Any]:
        """Wait."""
        ...

    def end(self) -> None:
        """Let it go."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How long to measure: rounds, about how many ms a turn has, how long any single step may take.

    After `case_s` seconds no further shape of a case is begun; those left out are told.
    """

    rounds: int = 7
    turn_ms: float = 50.0
    patience_s: float = 180.0
    case_s: float = 900.0


@dataclass(slots=True)
class Crew:
    """The workers of one case. One that fails is noted with its reason, and the others go on without it."""

    start: Callable[[str], Asked]
    result: Result
    patience_s: float
    workers: dict[str, Asked] = field(default_factory=dict)

    def join(self, name: str) -> None:
        """Start a worker; what it imports is not waited for."""
        try:
            self.workers[name] = self.start(name)
        except (OSError, WorkerError) as error:
            self.result.failed[name] = str(error)

    def ask(self, name: str, shape: str = "", **message: Any) -> dict[str, Any] | None:
        """Ask one worker; None if it failed, at this shape or for good."""
        if not self.send(name, shape, **message):
            return None
        return self.receive(name, shape)

    def send(self, name: str, shape: str = "", **message: Any) -> bool:
        """Ask, and leave the waiting for later."""
        if name not in self.workers or (shape and self.result.row(shape, name).failed):
            return False
        try:
            self.workers[name].send(**message)
        except WorkerError as error:
            self._failed(name, shape, error)
            return False
        return True

    def receive(self, name: str, shape: str = "") -> dict[str, Any] | None:
        """Wait for an answer."""
        try:
            return self.workers[name].receive(self.patience_s)
        except WorkerError as error:
            self._failed(name, shape, error)
            return None

    def together(self, shape: str, **message: Any) -> dict[str, dict[str, Any]]:
        """Ask all at once; the answers of those that did not fail."""
        asked = [name for name in [*self.workers] if self.send(name, shape, **message)]
        answers = {name: self.receive(name, shape) for name in asked}
        return {name: answer for name, answer in answers.items() if answer is not None}

    def end(self) -> None:
        """Let all go."""
        for name in [*self.workers]:
            self.workers.pop(name).end()

    def _failed(self, name: str, shape: str, error: WorkerError) -> None:
        if shape:
            self.result.row(shape, name).failed = str(error)
        if error.gone or not shape:
            self.result.failed[name] = str(error)
            self.workers.pop(name).end()


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Files with the calls of every shape: those that take turns, and with them ragged ones to compare on."""

    timed: Mapping[str, Path]
    compared: Mapping[str, Path]


def measure(  # noqa: PLR0913 - what one case needs, by name
    case: Case,
    names: tuple[str, ...],
    inputs: Inputs,
    *,
    start: Callable[[str], Asked],
    folder: Path,
    settings: Settings,
    note: Note,
    keep: Keep,
) -> Result:
    """Open, compare and time everybody of a case."""
    result, begun = blank(case), perf_counter()
    crew = Crew(start=start, result=result, patience_s=settings.patience_s)
    try:
        for name in names:
            crew.join(name)
        # Everybody has imported all before anybody is timed.
        result.facts = {name: crew.ask(name, do="facts") for name in [*crew.workers]}
        for name in [*crew.workers]:
            note(f"{case.name}: open {name}")
            _open(crew, name, case, inputs)
        for shape in case.shapes:
            if perf_counter() - begun > settings.case_s:
                result.failed[shape_name(shape)] = f"left out: {settings.case_s:g} s were over"
                continue
            note(f"{case.name}: warm up, compare and time {shape_name(shape)}")
            _warm(crew, case, shape, inputs)
            _compare(crew, shape_name(shape), inputs, folder)
            _time(crew, case, shape_name(shape), inputs, settings)
            keep(result)
        for name in [*crew.workers]:
            result.facts[f"{name} calls"] = crew.ask(name, do="stats")
    finally:
        crew.end()
    return result


def blank(case: Case) -> Result:
    """A result with nothing in it yet."""
    names = {shape_name(shape): case.sizes(shape) for shape in case.shapes}
    return Result(
        name=case.name,
        what=case.what,
        shapes=tuple(names),
        batches={name: sizes["batch"] for name, sizes in names.items()},
        pixels={
            name: prod(sizes.values())
            for name, sizes in names.items()
            if "height" in sizes and "width" in sizes
        },
    )


def inputs_of(case: Case, spec: ModelSpec, checkpoint: Path, folder: Path) -> Inputs:
    """Draw and keep the calls of every shape."""
    timed, compared = {}, {}
    for shape in case.shapes:
        calls = [
            drawn.draw(spec, checkpoint, shape, SEED + at, real=case.sentences) for at in range(case.sets)
        ]
        name = shape_name(shape)
        timed[name] = folder / f"{name}.npz"
        drawn.store(timed[name], calls)
        compared[name] = timed[name]
        if spec.reads_text:
            compared[name] = folder / f"{name}.ragged.npz"
            drawn.store(compared[name], [*calls, drawn.ragged(calls[0], SEED)])
    return Inputs(timed=timed, compared=compared)


def ends_of(case: Case, inputs: Inputs) -> dict[str, str]:
    """The calls that opening runs: the first answer, and the one that takes the most memory."""
    ends = {"first": case.shapes[0], "largest": case.largest}
    return {key: str(inputs.timed[shape_name(shape)]) for key, shape in ends.items()}


def _open(crew: Crew, name: str, case: Case, inputs: Inputs) -> None:
    """Load by itself, so that nobody else takes or frees memory; engines several times, in new processes.

    Every other one of those opens at once, the rest step by step to see what each step takes.
    """
    message = ends_of(case, inputs)
    at_once: list[Mapping[str, Any]] = []
    stepwise: list[Mapping[str, Any]] = []
    for at in range(case.openings - 1 if CONTENDERS[name].side == "engine" else 0):
        extra = f"{name} opening {at}"
        crew.join(extra)
        crew.ask(extra, do="facts")
        answer = crew.ask(extra, do="open", at_once=at % 2 == 0, **message)
        if answer is not None:
            (stepwise if at % 2 else at_once).append(answer)
            crew.workers.pop(extra).end()
    answer = crew.ask(name, do="open", **message)
    if answer is None:
        return
    stepwise.append(answer)

    def middle(key: str, answers: Sequence[Mapping[str, Any]] = stepwise) -> float:
        return median(float(each[key]) for each in answers)

    crew.result.opened[name] = Opened(
        context_ms=middle("context_ms"),
        load_ms=middle("load_ms"),
        first_ms=middle("first_ms", at_once or stepwise),
        memory_bytes=middle("memory_bytes"),
        openings=len(stepwise) + len(at_once),
    )


def _warm(crew: Crew, case: Case, shape: Shape, inputs: Inputs) -> None:
    """Everybody at once: nothing is timed yet, and compilers take long."""
    name = shape_name(shape)
    answers = crew.together(name, do="warm", feeds=str(inputs.timed[name]), sets=case.sets)
    operations = answers.get(BASELINE, {}).get("operations")
    if operations:
        crew.result.operations[name] = int(operations)


def _compare(crew: Crew, shape: str, inputs: Inputs, folder: Path) -> None:
    """Hold every answer to the baseline's on the same calls."""
    calls, expected = inputs.compared[shape], None
    order = sorted(crew.workers, key=lambda name: name != BASELINE)
    for name in order:
        to = folder / f"{shape}.{name}.npz"
        if crew.ask(name, shape, do="answer", feeds=str(calls), to=str(to)) is None:
            continue
        answers = drawn.stored(to)
        to.unlink()
        if name == BASELINE:
            expected = answers
        if expected is not None:
            crew.result.row(shape, name).accuracy = drawn.difference(expected, answers)


def _time(crew: Crew, case: Case, shape: str, inputs: Inputs, settings: Settings) -> None:
    """Rounds in which everybody has a turn, each round beginning with another one."""
    times: dict[tuple[str, Way], list[tuple[float, int]]] = {}
    names = [*crew.workers]
    for at in range(settings.rounds):
        for name in (*names[at % len(names) :], *names[: at % len(names)]) if names else ():
            for way in _ways(crew, name):
                message = {"feeds": str(inputs.timed[shape]), "sets": case.sets, "ms": settings.turn_ms}
                answer = crew.ask(name, shape, do="time", way=way, **message)
                if answer is not None:
                    times.setdefault((name, way), []).append((float(answer["ms"]), int(answer["runs"])))
    for (name, way), turns in times.items():
        if len(turns) == settings.rounds:
            crew.result.row(shape, name).turns[way] = Turns(
                rounds_ms=tuple(ms for ms, _ in turns), runs=tuple(runs for _, runs in turns)
            )


def _ways(crew: Crew, name: str) -> tuple[Way, ...]:
    """How a worker can be timed, as it said itself."""
    facts = crew.result.facts.get(name) or {}
    return tuple(facts.get("ways", ("host", "device")))
