"""Room for one request on the GPU: a stream, buffers that are sized once, contexts, captured graphs."""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from alula.core.errors import RunError, ShapeError
from alula.core.profile import Profile
from alula.core.tensor import Array, TensorSpec
from alula.engines.cuda import Buffer, view
from alula.engines.tensorrt.refusals import NO_REASON, one_line
from alula.engines.tensorrt.scratch import Place
from alula.engines.tensorrt.shapes import Key

logger = logging.getLogger(__name__)

# TensorRT's words for numpy's; it has no others that numpy knows.
DTYPES: Mapping[str, str] = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT32": "int32",
    "INT64": "int64",
    "INT8": "int8",
    "UINT8": "uint8",
    "BOOL": "bool",
}


Ends: TypeAlias = tuple[Sequence[TensorSpec], Sequence[TensorSpec]]
"""What an engine takes, and what it gives."""

NOWHERE: Mapping[str, int] = MappingProxyType({})

MOST_GRAPHS = 64
"""Graphs that one lane keeps; beyond, the one longest unused goes."""
MOST_SHAPES = 1024
"""Shapes that one lane remembers, likewise."""


@dataclass(slots=True)
class Loaded:
    """What a library loaded; released in the order that it asks for."""

    name: str
    module: Any
    engine: Any
    runtime: Any
    heard: Any

    def close(self) -> None:
        """Release the engine, then its runtime."""
        self.engine = None
        self.runtime = None

    def dtype(self, tensor: str) -> str:
        """What numpy calls the type of an input or output; 8.6 has int32 where the graph has int64."""
        kind = self.engine.get_tensor_dtype(tensor).name
        if kind not in DTYPES:
            raise RunError(f"{tensor} is {kind}, which numpy has no type for")
        return DTYPES[kind]

    def scratch_bytes(self) -> int:
        """What activations take at most, over all profiles."""
        for attribute in ("device_memory_size_v2", "device_memory_size"):
            if hasattr(self.engine, attribute):
                return int(getattr(self.engine, attribute))
        raise RunError(f"{self.name} does not say how much memory its activations take")

    def context(self) -> Any:
        """A context whose activations get memory from us."""
        strategies = getattr(self.module, "ExecutionContextAllocationStrategy", None)
        if strategies is not None:
            made = self.engine.create_execution_context(strategies.USER_MANAGED)
        else:
            made = self.engine.create_execution_context_without_device_memory()
        if made is None:
            raise RunError(f"no execution context: {self.reason()}")
        return made

    def reason(self) -> str:
        """What the library said last."""
        return one_line("; ".join(self.heard.errors[-2:])) or NO_REASON


@dataclass(slots=True)
class Seen:
    """A shape that ran here: by which profile, where its tensors lie, and how often it ran launch by launch."""

    profile: int
    shapes: Mapping[str, tuple[int, ...]]
    arrays: Mapping[str, Array]
    elsewhere: Mapping[str, int]
    runs: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A request in a lane: its sizes, those it runs at, and how it runs."""

    lane: Lane
    key: Key
    at: Key
    replayed: bool


class Lane:
    """One request at a time. Inputs go into page-locked memory; copies and layers are queued on one stream.

    Tensors that lie `elsewhere` on the GPU are neither copied nor given memory: a shape says where it has them.
    """

    def __init__(
        self,
        loaded: Loaded,
        place: Place,
        profiles: Sequence[Profile],
        ends: Ends,
        elsewhere: Collection[str] = (),
    ) -> None:
        inputs, outputs = ends
        self.graphs: OrderedDict[Key, int] = OrderedDict()
        self._loaded, self._cuda, self._scratch = loaded, place.cuda, place.scratch
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._copied_in = [spec.name for spec in inputs if spec.name not in elsewhere]
        self._copied_out = [spec.name for spec in outputs if spec.name not in elsewhere]
        self._dtypes = {spec.name: loaded.dtype(spec.name) for spec in (*inputs, *outputs)}
        self._contexts: dict[int, Any] = {}
        self._at: dict[int, Key] = {}
        self._seen: OrderedDict[Key, Seen] = OrderedDict()
        self._capturable = True
        self._host: dict[str, Buffer] = {}
        self._device: dict[str, Buffer] = {}
        self._memory: Buffer | None = None
        self.stream = place.cuda.stream()
        try:
            self._allocate(profiles)
        except BaseException:
            self.close()
            raise

    def _allocate(self, profiles: Sequence[Profile]) -> None:
        self._scratch.join(self._cuda, self._loaded.scratch_bytes())
        self._memory = self._scratch.buffer
        sizes: dict[str, int] = {}
        for index, profile in enumerate(profiles):
            largest = self._largest(index, profile)
            for name in (*self._copied_in, *self._copied_out):
                shape = largest[name]
                wanted = int(np.prod(shape, dtype=np.int64)) * np.dtype(self._dtypes[name]).itemsize
                sizes[name] = max(wanted, sizes.get(name, 0))
        for name, size in sizes.items():
            self._device[name] = self._cuda.malloc(size)
            self._host[name] = self._cuda.malloc_pinned(size)
        for context in self._contexts.values():
            self._bind(context)

    def _largest(self, index: int, profile: Profile) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors at a profile's largest sizes.

        A context takes an eighth of a second to make (BERT-base, H200), so none is asked where the axes tell; each is
        made when its profile is used first.
        """
        given = {spec.name: profile.shapes(spec)[2] for spec in self._inputs}
        axes = {d for spec in self._outputs for d in spec.shape if isinstance(d, str)}
        if not axes.issubset(profile.axes):
            return self._reshape(index, given)
        return {**given, **{spec.name: profile.shapes(spec)[2] for spec in self._outputs}}

    def _bind(self, context: Any) -> None:
        for name, buffer in self._device.items():
            context.set_tensor_address(name, buffer.address)

    def _context(self, profile: int) -> Any:
        """The context of a profile; all share the memory for activations, since one runs at a time."""
        if profile not in self._contexts:
            context = self._loaded.context()
            self._give_memory(context)
            if not context.set_optimization_profile_async(profile, self.stream):
                raise RunError(f"profile {profile} cannot be set: {self._loaded.reason()}")
            self._cuda.synchronize(self.stream)
            self._contexts[profile] = context
            if self._device:
                self._bind(context)
        return self._contexts[profile]

    def _give_memory(self, context: Any) -> None:
        assert self._memory is not None
        if hasattr(context, "set_device_memory"):
            context.set_device_memory(self._memory.address, self._memory.size)
        else:
            context.device_memory = self._memory.address

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """What is queued within has the memory for activations for itself, wherever that lies by now."""
        with self._scratch.turn(self._cuda, self.stream) as memory:
            self._look(memory)
            yield

    def _look(self, memory: Buffer) -> None:
        """Where activations lie elsewhere than before, graphs have the old place in them."""
        if memory == self._memory:
            return
        self._memory = memory
        for context in self._contexts.values():
            self._give_memory(context)
        self._let_graphs_go()

    def _let_graphs_go(self) -> None:
        for graph in self.graphs.values():
            self._cuda.destroy_graph(graph)
        self.graphs.clear()

    def _reshape(self, profile: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Tell the context its input shapes; the shapes of all tensors."""
        context = self._context(profile)
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise RunError(f"{name} cannot have shape {shape}: {self._loaded.reason()}")
        found = {
            spec.name: tuple(int(d) for d in context.get_tensor_shape(spec.name)) for spec in self._outputs
        }
        for spec in self._outputs:
            # Sizes that do not go together leave an output without a shape.
            if len(found[spec.name]) != len(spec.shape) or any(d < 0 for d in found[spec.name]):
                raise RunError(
                    f"the size of output {spec.name!r} is not known for {dict(shapes)}: it depends on values, which "
                    "is not taken, or these sizes do not go together"
                )
        return {**shapes, **found}

    def knows(self, at: Key) -> bool:
        """Whether the shape was prepared, which then counts as the one used last."""
        if at in self._seen:
            self._seen.move_to_end(at)
        return at in self._seen

    def prepare(
        self,
        at: Key,
        profile: int,
        shapes: Mapping[str, tuple[int, ...]],
        elsewhere: Mapping[str, int] = NOWHERE,
    ) -> None:
        """Know a shape: what the outputs' shapes are, where tensors lie in the host's memory, or else on the GPU."""
        self._at.pop(profile, None)
        found = self._reshape(profile, shapes)
        copied = (*self._copied_in, *self._copied_out)
        arrays = {name: view(self._host[name], self._dtypes[name], found[name]) for name in copied}
        self._seen[at] = Seen(profile, found, arrays, elsewhere)
        self._place(at)
        while len(self._seen) > MOST_SHAPES:
            self.forget(next(iter(self._seen)))

    def fill(self, name: str, array: Array, at: Key) -> None:
        """Write an input into page-locked memory, padded to the shape: rows by the first row, all else by noughts."""
        into = self._seen[at].arrays[name]
        if array.shape == into.shape:
            np.copyto(into, array, casting="unsafe")
            written = into
        else:
            into[...] = 0
            part = tuple(slice(size) for size in array.shape)
            into[part] = array
            into[len(array) :] = into[0]
            written = into[part]
        if into.dtype != array.dtype and (written != array).any():
            raise ShapeError(f"{name}: has {_lost(written, array)}, the engine takes {into.dtype}")

    def start(self, at: Key) -> bool:
        """Queue copies in, layers, copies out; whether a captured graph did it."""
        with self._turn():
            return self._start(at)

    def _start(self, at: Key) -> bool:
        if at in self.graphs:
            self.graphs.move_to_end(at)
            self._cuda.launch(self.graphs[at], self.stream)
            return True
        seen = self._seen[at]
        if self._at.get(seen.profile) != at:
            self._at.pop(seen.profile, None)
            self._reshape(seen.profile, {spec.name: seen.shapes[spec.name] for spec in self._inputs})
            self._place(at)
        self._enqueue(at)
        return False

    def _place(self, at: Key) -> None:
        """Tell the context where the shape that it was told has the tensors that lie elsewhere."""
        seen = self._seen[at]
        context = self._contexts[seen.profile]
        for name, address in seen.elsewhere.items():
            context.set_tensor_address(name, address)
        self._at[seen.profile] = at

    def wait(self) -> None:
        """Until the request is done."""
        self._cuda.synchronize(self.stream)

    def output(self, name: str, at: Key) -> Array:
        """An output of the request that is done, in the lane's own memory."""
        return self._seen[at].arrays[name]

    def comes_again(self, at: Key) -> bool:
        """Count a run launch by launch; whether the shape had one before, so that capturing it pays."""
        seen = self._seen[at]
        seen.runs += 1
        return seen.runs > 1

    def capture(self, at: Key) -> tuple[int, int]:
        """Capture the shape that just ran; how many graphs were added and let go."""
        if not self._capturable:
            return 0, 0
        context = self._contexts[self._seen[at].profile]
        can = getattr(context, "is_stream_capturable", None)
        try:
            if can is not None and not can(self.stream):
                raise RunError("TensorRT says that it cannot be captured")  # noqa: TRY301 - one way out for both
            self.graphs[at] = self._cuda.capture(self.stream, lambda: self._enqueue(at))
        except RunError as error:
            if self._cuda.lost:
                raise
            logger.warning("%s runs without CUDA graphs: %s", self._loaded.name, error)
            self._capturable = False
            return 0, 0
        evicted = 0
        while len(self.graphs) > MOST_GRAPHS:
            self.forget(next(iter(self.graphs)))
            evicted += 1
        return 1, evicted

    def timed(self, at: Key, profiler: Any, runs: int) -> None:
        """Run a prepared shape launch by launch, with what each layer took told to the profiler."""
        context = self._contexts[self._seen[at].profile]
        context.profiler = profiler
        try:
            for _ in range(runs):
                with self._turn():
                    self._enqueue(at)
                self.wait()
        finally:
            # TensorRT takes no profiler away again, so this context goes; the next call makes another.
            self._at.pop(self._seen[at].profile)
            del self._contexts[self._seen[at].profile]

    @property
    def known(self) -> list[Key]:
        """The shapes that were prepared, the one used longest ago first."""
        return list(self._seen)

    def forget(self, at: Key) -> None:
        """Let a shape go, and its graph."""
        if at in self.graphs:
            self._cuda.destroy_graph(self.graphs.pop(at))
        self._seen.pop(at, None)

    def _enqueue(self, at: Key) -> None:
        seen = self._seen[at]
        for name in self._copied_in:
            size = self._bytes(name, seen.shapes)
            self._cuda.copy_in(self._device[name], self._host[name], size, self.stream)
        if not self._contexts[seen.profile].execute_async_v3(self.stream):
            raise RunError(f"{self._loaded.name} failed: {self._loaded.reason()}")
        for name in self._copied_out:
            size = self._bytes(name, seen.shapes)
            self._cuda.copy_out(self._host[name], self._device[name], size, self.stream)

    def _bytes(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> int:
        return int(np.prod(shapes[name], dtype=np.int64)) * np.dtype(self._dtypes[name]).itemsize

    def close(self) -> None:
        """Release graphs, contexts and memory; what a lost GPU refuses is gone with the process."""
        with contextlib.suppress(RunError):
            self._cuda.synchronize(self.stream)
            self._let_graphs_go()
            self._contexts.clear()
            if self._memory is not None:
                self._scratch.leave(self._cuda)
                self._memory = None
            for buffer in self._device.values():
                self._cuda.free(buffer)
            for buffer in self._host.values():
                self._cuda.free_pinned(buffer)
            self._device, self._host = {}, {}
            self._cuda.destroy_stream(self.stream)


def _lost(written: Array, array: Array) -> object:
    """The first number that the engine's type does not hold."""
    return array[written != array].flat[0].item()
