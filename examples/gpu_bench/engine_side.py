"""The worker that runs an engine, without torch.

python -m gpu_bench.engine_side RECORD
"""

from __future__ import annotations

import os
import platform
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any, Protocol

from alula.core.engine import Backend, Session
from alula.core.errors import RunError
from alula.core.tensor import Feeds, axis_sizes
from alula.engines import backend
from alula.engines.cuda import Cuda
from alula.engines.tensorrt.lane import Lane
from alula.engines.tensorrt.session import Pending, TensorRtSession
from alula.engines.tensorrt.shapes import Key
from gpu_bench.drawn import store, stored
from gpu_bench.record import read
from gpu_bench.turns import Calls, one_by_one, turn
from gpu_bench.wire import Handler, serve

IN_FLIGHT = 2


class Device(Protocol):
    """Where an engine runs."""

    def start(self) -> None:
        """Make this process's context."""
        ...

    def free_bytes(self) -> tuple[int, int]:
        """What is free, and what there is."""
        ...


class Host:
    """A CPU in a GPU's place: what is free is less by what this process has resident."""

    def start(self) -> None:
        """Nothing to start."""

    def free_bytes(self) -> tuple[int, int]:
        """Relative to nothing but itself."""
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return -resident, 0


class Inside:
    """A TensorRT session's first lane, taken apart: its graph replayed alone, its layers without the copies."""

    def __init__(self, session: TensorRtSession, cuda: Cuda) -> None:
        self._session, self._cuda = session, cuda
        self._lane: Lane = session._lanes[0]
        self._layers: dict[Key, int] = {}

    def replay(self, calls: Sequence[Feeds]) -> Calls:
        """Copies in, layers, copies out, from page-locked memory that was filled before."""
        at = self._captured(calls[0])

        def call(index: int) -> None:
            self._lane.start(at)
            self._lane.wait()

        return one_by_one(call, len(calls), lambda index: self._fill(calls[index], at))

    def layers(self, calls: Sequence[Feeds]) -> Calls:
        """The layers alone, as a graph of its own; inputs were copied before."""
        lane, cuda, at = self._lane, self._cuda, self._captured(calls[0])
        if at not in self._layers:
            self._layers[at] = self._capture(at)
        graph = self._layers[at]

        def arrange(index: int) -> None:
            self._fill(calls[index], at)
            for spec in self._session.inputs:
                size = lane._bytes(spec.name, lane._seen[at].shapes)
                cuda.copy_in(lane._device[spec.name], lane._host[spec.name], size, lane.stream)
            cuda.synchronize(lane.stream)

        def call(index: int) -> None:
            cuda.launch(graph, lane.stream)
            cuda.synchronize(lane.stream)

        return one_by_one(call, len(calls), arrange)

    def close(self) -> None:
        """Release the graphs made here."""
        for graph in self._layers.values():
            self._cuda.destroy_graph(graph)
        self._layers.clear()

    def _captured(self, feeds: Feeds) -> Key:
        """The sizes of a call whose shape the lane replays."""
        sizes = axis_sizes(self._session.inputs, feeds)
        at = tuple(sizes[axis] for axis in self._session._axes)
        if at not in self._lane.graphs:
            raise RunError(f"{at} was not captured as a graph")
        return at

    def _capture(self, at: Key) -> int:
        lane, seen = self._lane, self._lane._seen[at]
        lane._reshape(seen.profile, {spec.name: seen.shapes[spec.name] for spec in self._session.inputs})
        # So that the lane does not take the context's shape for the one that it set itself.
        lane._at.pop(seen.profile, None)
        context = lane._contexts[seen.profile]

        def enqueue() -> None:
            if not context.execute_async_v3(lane.stream):
                raise RunError("the layers alone could not be queued")

        enqueue()
        self._cuda.synchronize(lane.stream)
        return self._cuda.capture(lane.stream, enqueue)

    def _fill(self, feeds: Feeds, at: Key) -> None:
        for name, array in feeds.items():
            self._lane.fill(name, array, at)


def in_flight(session: TensorRtSession, calls: Sequence[Feeds]) -> Calls:
    """Requests that overlap, time per request."""

    def burst(count: int) -> list[float]:
        flying: deque[Pending] = deque()
        begun = perf_counter_ns()
        for at in range(count):
            if len(flying) == IN_FLIGHT:
                flying.popleft().result()
            flying.append(session.submit(calls[at % len(calls)]))
        while flying:
            flying.popleft().result()
        return [(perf_counter_ns() - begun) / 1e6 / count]

    return burst


class EngineSide:
    """What the worker is asked, one method each."""

    def __init__(self, record: Path) -> None:
        self._engine = read(record)
        self._on_gpu = self._engine.backend != "onnxruntime"
        self._backend: Backend = backend(self._engine.backend)
        if self._on_gpu:
            from alula.engines.tensorrt.vendor import load  # noqa: PLC0415 - a CPU does without

            load(self._engine.backend)
        self._device: Device = Cuda() if self._on_gpu else Host()
        self._session: Session | None = None
        self._inside: Inside | None = None
        self._feeds: dict[str, list[Feeds]] = {}

    def facts(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """What this process is."""
        ways = ("host", "device", "layers", "flight") if self._on_gpu else ("host", "device")
        return {"engine": self._engine.target, "python": platform.python_version(), "ways": ways}

    def open(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Context, engine, first answer; then the largest shape, and what the device has less.

        `at_once` opens as everybody does, who does not start a context first to look at it.
        """
        first, largest = (stored(Path(message[key]))[0] for key in ("first", "largest"))
        begun = perf_counter()
        if message.get("at_once"):
            self._session = self._backend.open(self._engine)
            self._session.run(first)
            return {"first_ms": 1e3 * (perf_counter() - begun)}
        self._device.start()
        context_at = perf_counter()
        free = self._device.free_bytes()[0]
        loading_at = perf_counter()
        self._session = self._backend.open(self._engine)
        loaded_at = perf_counter()
        self._session.run(first)
        answered_at = perf_counter()
        for _ in range(3):
            self._session.run(largest)
        if isinstance(self._session, TensorRtSession):
            assert isinstance(self._device, Cuda)
            self._inside = Inside(self._session, self._device)
        return {
            "context_ms": 1e3 * (context_at - begun),
            "load_ms": 1e3 * (loaded_at - loading_at),
            "first_ms": 1e3 * (answered_at - begun),
            "memory_bytes": free - self._device.free_bytes()[0],
        }

    def warm(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Run a shape often enough to be captured."""
        feeds = self._of(message)
        for _ in range(3):
            self._opened().run(feeds[0])
        return {}

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the calls of a file into another."""
        session = self._opened()
        store(Path(message["to"]), [session.run(feeds) for feeds in stored(Path(message["feeds"]))])
        return {}

    def time(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """One turn."""
        ms, runs = turn(self._calls(message["way"], self._of(message)), float(message["ms"]))
        return {"ms": ms, "runs": runs}

    def stats(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """How calls ran, where the session counts it."""
        if not isinstance(self._session, TensorRtSession):
            return {}
        counted = self._session.stats
        return {name: getattr(counted, name) for name in ("replayed", "launched", "padded", "captured")}

    def close(self) -> None:
        """Release everything."""
        if self._inside is not None:
            self._inside.close()
        if self._session is not None:
            self._session.close()

    def handlers(self) -> dict[str, Handler]:
        """By the word that asks for it."""
        return {
            "facts": self.facts,
            "open": self.open,
            "warm": self.warm,
            "answer": self.answer,
            "time": self.time,
            "stats": self.stats,
        }

    def _calls(self, way: str, feeds: Sequence[Feeds]) -> Calls:
        session = self._opened()
        if way == "host" or self._inside is None:
            return one_by_one(lambda at: session.run(feeds[at]), len(feeds))
        if way == "flight":
            assert isinstance(session, TensorRtSession)
            return in_flight(session, feeds)
        return self._inside.layers(feeds) if way == "layers" else self._inside.replay(feeds)

    def _of(self, message: Mapping[str, Any]) -> list[Feeds]:
        """The inputs of a shape that take turns; those of the shape before are let go."""
        key = str(message["feeds"])
        if key not in self._feeds:
            self._feeds = {key: stored(Path(key))[: int(message["sets"])]}
        return self._feeds[key]

    def _opened(self) -> Session:
        if self._session is None:
            raise RunError("nothing is open")
        return self._session


def main(args: Sequence[str]) -> int:
    """Serve one engine."""
    sides: list[EngineSide] = []

    def start() -> dict[str, Handler]:
        sides.append(EngineSide(Path(args[0])))
        return sides[0].handlers()

    code = serve(start)
    for side in sides:
        side.close()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
