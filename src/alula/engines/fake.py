"""An engine made from a Python function, with the refusals of every other one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alula.core.engine import Engine, Plan
from alula.core.errors import RunError
from alula.core.graph import Graph
from alula.core.profile import Profile, admit
from alula.core.progress import Note, quiet
from alula.core.tensor import Array, Feeds, TensorSpec
from alula.core.words import refuse_unless_offered
from alula.engines import folder

Function = Callable[[Feeds], Feeds]


class FakeSession:
    """Runs a function of feeds."""

    def __init__(
        self,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        profile: Profile,
        function: Function,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._profile = profile
        self._function: Function | None = function

    def run(self, feeds: Feeds) -> Feeds:
        """Run the function, and hold it to the outputs it promised."""
        if self._function is None:
            raise RunError("session is closed")
        sizes = admit(self.inputs, self._profile, feeds)
        given = self._function(feeds)
        return {spec.name: _promised(spec, sizes, given) for spec in self.outputs}

    def close(self) -> None:
        """Forget the function."""
        self._function = None


def session(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], profile: Profile, function: Function
) -> FakeSession:
    """A session that runs `function`."""
    return FakeSession(inputs, outputs, profile, function)


class Fake:
    """Compiles nothing: every engine it opens runs one function, by default `row_sums` of what is asked for."""

    name = "fake"
    target = "fake 1"

    def __init__(self, function: Function | None = None) -> None:
        self._function = function

    def compile(self, graph: Graph, plan: Plan, to: Path, *, note: Note = quiet) -> Engine:
        """Record the graph; its file is not read."""
        refuse_unless_offered(self.name, graph.precision)
        folder.refuse_existing(to)
        to.mkdir(parents=True)
        engine = Engine(backend=self.name, target=self.target, path=to, graph=graph, plan=plan)
        folder.write(engine)
        return engine

    def open(self, engine: Engine, *, threads: int = 0) -> FakeSession:
        """A session on the function."""
        folder.check(engine, self.target)
        function = self._function or row_sums(engine.outputs)
        return FakeSession(engine.inputs, engine.outputs, engine.plan.profile, function)


def row_sums(outputs: tuple[TensorSpec, ...]) -> Function:
    """A function that fills each output row with the sum of that row of the first input, masked if it can be."""

    def function(feeds: Feeds) -> Feeds:
        first = np.asarray(next(iter(feeds.values())), np.float64)
        kept = first * np.asarray(feeds.get("attention_mask", 1), np.float64)
        sums = kept.reshape(len(kept), -1).sum(axis=1)
        sizes = {"batch": len(first), "length": first.shape[-1]}
        return {spec.name: _filled(spec, spec.sized(sizes), sums) for spec in outputs}

    return function


def _filled(spec: TensorSpec, shape: tuple[int, ...], rows: NDArray[np.float64]) -> Array:
    column = rows.astype(spec.dtype).reshape(-1, *[1] * (len(shape) - 1))
    return np.broadcast_to(column, shape)


def _promised(spec: TensorSpec, sizes: dict[str, int], given: Feeds) -> Array:
    """The caller's own copy of one output, once it is what its spec says."""
    if spec.name not in given:
        raise RunError(f"fake gave no {spec.name!r}; it gave {sorted(given)}")
    array, shape = given[spec.name], spec.sized(sizes)
    if array.dtype != np.dtype(spec.dtype) or array.shape != shape:
        raise RunError(
            f"fake gave {spec.name!r} as {array.dtype} {array.shape}, expected {spec.dtype} {shape}"
        )
    return array.copy()
