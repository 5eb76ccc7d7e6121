"""An engine that is loaded on a GPU: requests in, answers out, without torch."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from alula.core.engine import Engine
from alula.core.errors import DeviceLostError, EngineError, OutOfMemoryError, RunError
from alula.core.profile import admit, pick
from alula.core.tensor import Array, Feeds, TensorSpec, axis_sizes
from alula.core.timing import LayerTimes
from alula.engines.cuda import Cuda
from alula.engines.tensorrt.beds import Beds, keepable
from alula.engines.tensorrt.compiling import listener
from alula.engines.tensorrt.lane import Call, Lane, Loaded
from alula.engines.tensorrt.refusals import NO_REASON, one_line
from alula.engines.tensorrt.scratch import Place, Scratch
from alula.engines.tensorrt.shapes import Bucket, Key, Stats, may_grow, padded
from alula.engines.tensorrt.vendor import Library

logger = logging.getLogger(__name__)

_SCRATCHES = (Scratch(), Scratch())
"""What all engines of this process compute in, and so how many requests of one are in flight at once: one computes
while the other's copies run."""
WARMING = 3
"""Runs of a shape that is warmed up, launched and then replayed; the least time of each counts."""


class Pending:
    """A request that was queued; `result` waits for it. Asking twice gives the same arrays."""

    def __init__(self, session: TensorRtSession, call: Call) -> None:
        self._session = session
        self._call: Call | None = call
        self._outputs: Feeds | None = None
        self._error: RunError | None = None

    @property
    def waiting(self) -> bool:
        """Whether its outputs are still in the lane."""
        return self._call is not None

    def result(self) -> Feeds:
        """The outputs, which are the caller's to keep; an error of this request alone."""
        self.settle()
        if self._error is not None:
            raise self._error
        assert self._outputs is not None
        return self._outputs

    def settle(self) -> None:
        """Wait, and take the outputs out of the lane, which is free then."""
        if self._call is None:
            return
        call, self._call = self._call, None
        try:
            self._outputs = self._session.finish(call)
        except RunError as error:
            self._error = error


class TensorRtSession:
    """A loaded engine with lanes for requests in flight: `submit` queues one, `run` is `submit` and wait.

    As many are in flight as there are scratches to compute in. One owner at a time, as every session. A shape that
    comes again is captured as a CUDA graph and replayed from then on; `stats` says how many were. Running out of the
    GPU's memory fails one request; an error that stays kills the session.
    """

    def __init__(self, engine: Engine, loaded: Loaded, cuda: Cuda, scratches: Sequence[Scratch]) -> None:
        self.inputs = engine.inputs
        self.outputs = engine.outputs
        self.stats = Stats()
        self.buckets: tuple[Bucket, ...] = ()
        self._plan = engine.plan
        self._axes = tuple(dict.fromkeys(d for spec in self.inputs for d in spec.shape if isinstance(d, str)))
        self._may_grow = may_grow(self.inputs, self._axes)
        self._cuda = cuda
        self._loaded: Loaded | None = loaded
        self._scratches = tuple(scratches)
        self._most = len(self._scratches)
        self._flying: deque[Pending] = deque()
        self._beds: Beds | None = None
        self._lanes: list[Lane] = []
        # The buffers of a lane hold caches of the largest size too, which beds do without.
        if not self._keeps:
            self._lanes.append(self._new_lane(loaded))
        self._free = list(self._lanes)

    def run(self, feeds: Feeds) -> Feeds:
        """Run once."""
        return self.submit(feeds).result()

    def submit(self, feeds: Feeds) -> Pending:
        """Queue a request; where all lanes are taken, the oldest request is waited for first."""
        loaded = self._usable()
        sizes = admit(self.inputs, self._plan.profile, feeds)
        if self._plan.tuned:
            pick(self._plan.profiles, sizes)
        key = tuple(sizes[axis] for axis in self._axes)
        at = padded(key, self.buckets, self._may_grow)
        lane = self._lane(loaded)
        try:
            replayed = self._start(lane, at, feeds)
        except BaseException:
            self._free.append(lane)
            raise
        self.stats += Stats(replayed=replayed, launched=not replayed, padded=at != key)
        pending = Pending(self, Call(lane=lane, key=key, at=at, replayed=replayed))
        self._flying.append(pending)
        return pending

    def finish(self, call: Call) -> Feeds:
        """Wait for a call and copy its outputs; for `Pending` alone."""
        lane = call.lane
        try:
            lane.wait()
            outputs = {spec.name: self._taken(call, spec) for spec in self.outputs}
            if not call.replayed and lane.comes_again(call.at):
                captured, evicted = lane.capture(call.at)
                self.stats += Stats(captured=captured, evicted=evicted)
        finally:
            self._flying = deque(each for each in self._flying if each.waiting)
            self._free.append(lane)
        return outputs

    @property
    def _keeps(self) -> bool:
        return keepable(self.inputs, self.outputs)

    def caches(self) -> Beds | None:
        """Room on the GPU for the caches of a decoder; None for a graph that has none to keep."""
        loaded = self._usable()
        if self._beds is None and self._keeps:
            ends = self.inputs, self.outputs
            self._beds = Beds(loaded, Place(self._cuda, self._scratches[0]), self._plan, ends)
        return self._beds

    @property
    def replays(self) -> int:
        """How many calls replayed a graph."""
        return self.stats.replayed

    def warm_up(self, shapes: Sequence[Mapping[str, int]]) -> None:
        """Capture these shapes and time them: from now on, calls are padded to one of them where that is faster."""
        made = []
        for sizes in shapes:
            feeds = {spec.name: np.ones(spec.sized(sizes), spec.dtype) for spec in self.inputs}
            admit(self.inputs, self._plan.profile, feeds)
            key = tuple(sizes[axis] for axis in self._axes)
            lane = self._lane(self._usable())
            try:
                launched = min(self._timed(lane, key, feeds) for _ in range(WARMING))
                captured, evicted = (0, 0) if key in lane.graphs else lane.capture(key)
                self.stats += Stats(captured=captured, evicted=evicted)
                replayed = min(self._timed(lane, key, feeds) for _ in range(WARMING))
            finally:
                self._free.append(lane)
            made.append(Bucket(key, launched, replayed))
        self.buckets = tuple(made)

    def layer_times(self, feeds: Feeds, runs: int) -> LayerTimes:
        """Mean milliseconds of each layer; nothing may be in flight."""
        loaded = self._usable()
        self.run(feeds)
        sizes = axis_sizes(self.inputs, feeds)
        key = tuple(sizes[axis] for axis in self._axes)
        lane, at = self._lane(loaded), padded(key, self.buckets, self._may_grow)
        heard = profiler(loaded.module)
        try:
            call_ms = min(self._timed(lane, at, feeds) for _ in range(WARMING))
            lane.timed(at, heard, runs)
        finally:
            self._free.append(lane)
        layers = tuple((name, total / runs) for name, total in heard.total.items())
        return LayerTimes(layers=layers, call_ms=call_ms, runs=runs)

    def close(self) -> None:
        """Release the GPU's memory; requests in flight are waited for."""
        if self._loaded is None:
            return
        for pending in list(self._flying):
            pending.settle()
        for lane in self._lanes:
            lane.close()
        if self._beds is not None:
            self._beds.close()
        self._lanes, self._free = [], []
        self._loaded.close()
        self._loaded = None

    def _usable(self) -> Loaded:
        if self._loaded is None:
            raise RunError("session is closed")
        if self._cuda.lost:
            raise DeviceLostError(self._cuda.lost)
        return self._loaded

    def _new_lane(self, loaded: Loaded) -> Lane:
        place = Place(self._cuda, self._scratches[len(self._lanes)])
        return Lane(loaded, place, self._plan.profiles, (self.inputs, self.outputs))

    def _lane(self, loaded: Loaded) -> Lane:
        """A lane that is free: a new one while there may be more, otherwise the oldest request's."""
        if not self._free and len(self._lanes) < self._most:
            try:
                self._lanes.append(self._new_lane(loaded))
                self._free.append(self._lanes[-1])
            except OutOfMemoryError as error:
                logger.warning("no room for another request in flight: %s", error)
                self._most = len(self._lanes)
        if not self._free:
            self._flying[0].settle()
        return self._free.pop(0)

    def _start(self, lane: Lane, at: Key, feeds: Feeds) -> bool:
        if not lane.knows(at):
            sizes = dict(zip(self._axes, at, strict=True))
            shapes = {spec.name: spec.sized(sizes) for spec in self.inputs}
            lane.prepare(at, pick(self._plan.profiles, sizes), shapes)
        for name, array in feeds.items():
            lane.fill(name, array, at)
        return lane.start(at)

    def _timed(self, lane: Lane, at: Key, feeds: Feeds) -> float:
        start = perf_counter()
        self._start(lane, at, feeds)
        lane.wait()
        return 1e3 * (perf_counter() - start)

    def _taken(self, call: Call, spec: TensorSpec) -> Array:
        """The caller's own copy of an output: what was padded is cut off, the type is the promised one."""
        array = call.lane.output(spec.name, call.at)
        if call.at != call.key:
            sizes = dict(zip(self._axes, call.key, strict=True))
            array = array[tuple(slice(sizes.get(d) if isinstance(d, str) else None) for d in spec.shape)]
        return array.astype(spec.dtype, copy=True)


def opened(engine: Engine, lib: Library, cuda: Cuda, plan: memoryview) -> TensorRtSession:
    """A session on the bytes of an engine, which need not outlive the call; CUDA was started."""
    clock = [perf_counter()]
    heard = listener(lib)
    runtime = lib.module.Runtime(heard)
    if engine.plan.portable:
        runtime.engine_host_code_allowed = True
    loaded = runtime.deserialize_cuda_engine(plan)
    if loaded is None:
        raise EngineError(
            f"{lib.target} {lib.version} cannot load {engine.path}: {_reason(heard)}; build the engine again"
        )
    if engine.plan.strip_weights:
        _refit(lib, heard, loaded, engine.graph.path)
    _check_tensors(engine, loaded)
    clock.append(perf_counter())
    name = f"{lib.target} {lib.version}"
    loaded = Loaded(name=name, module=lib.module, engine=loaded, runtime=runtime, heard=heard)
    session = TensorRtSession(engine, loaded, cuda, _SCRATCHES)
    clock.append(perf_counter())
    read, made = (1e3 * (end - start) for start, end in pairwise(clock))
    logger.info("%s: read in %.0f ms, contexts and memory in %.0f ms", engine.path, read, made)
    return session


def profiler(trt: Any) -> Any:
    """What TensorRT tells the milliseconds of every layer, run by run; their sums in order."""

    class Profiler(trt.IProfiler):  # type: ignore[misc] # the module is known when it is loaded
        def __init__(self) -> None:
            super().__init__()
            self.total: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.total[layer_name] = self.total.get(layer_name, 0.0) + ms

    return Profiler()


def _refit(lib: Library, heard: Any, loaded: Any, graph: Path) -> None:
    refitter = lib.module.Refitter(loaded, heard)
    parser = lib.module.OnnxParserRefitter(refitter, heard)
    if not parser.refit_from_file(str(graph.absolute())) or not refitter.refit_cuda_engine():
        raise EngineError(
            f"the weights of {graph} do not go into the engine: {_reason(heard)}; build the engine again"
        )


def _check_tensors(engine: Engine, loaded: Any) -> None:
    names = {loaded.get_tensor_name(at) for at in range(loaded.num_io_tensors)}
    expected = {spec.name for spec in (*engine.inputs, *engine.outputs)}
    if names != expected:
        raise EngineError(
            f"{engine.path}: the engine has tensors {sorted(names)}, its graph {sorted(expected)}; "
            "build the engine again"
        )


def _reason(heard: Any) -> str:
    return one_line("; ".join(heard.errors[-2:])) or NO_REASON
