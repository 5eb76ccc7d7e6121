"""A GPU that is not there: CUDA's calls and TensorRT's run side, over the host's memory and ONNX Runtime.

Work that is queued on a stream runs when some stream is waited for, not before, so that an answer that is read too
early is a wrong one here as well; streams take turns then, piece by piece, so that what two of them write is written
twice. What a real one refuses is refused: capturing a shape that never ran, freeing twice, memory beyond what there is,
contexts without memory or with tensors that lie nowhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort

from alula.core.engine import Engine
from alula.core.profile import Profile

Work = Callable[[], object]
WAITS = object()
"""What a piece of work gives that has to wait for another stream: it is asked again."""
Code = IntEnum(
    "Code",
    {
        "cudaSuccess": 0,
        "cudaErrorInvalidValue": 1,
        "cudaErrorMemoryAllocation": 2,
        "cudaErrorIllegalAddress": 700,
        "cudaErrorStreamCaptureInvalidated": 901,
    },
)
OK = Code(0)
REFUSED, FULL, ILLEGAL, INVALIDATED = Code(1), Code(2), Code(700), Code(901)

GIB = 1 << 30


class FakeCudart:
    """The calls of `cuda.bindings.runtime` that this package makes."""

    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)  # noqa: N815
    cudaMemcpyKind = SimpleNamespace(  # noqa: N815
        cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2, cudaMemcpyDeviceToDevice=3
    )
    cudaMemcpy3DParms = SimpleNamespace  # noqa: N815
    make_cudaExtent = make_cudaPos = staticmethod(lambda *sizes: sizes)  # noqa: N815
    make_cudaPitchedPtr = staticmethod(lambda address, pitch, width, rows: (address, pitch, rows))  # noqa: N815

    def __init__(self, memory: int = GIB) -> None:
        self.memory = memory
        self.device: dict[int, ctypes.Array[Any]] = {}
        self.host: dict[int, ctypes.Array[Any]] = {}
        self.streams: dict[int, list[Work]] = {}
        self.events: dict[int, list[int]] = {}  # how often set by who queued it, and on the GPU
        self.captured: dict[int, list[Work]] = {}
        self.graphs: dict[int, list[Work]] = {}
        self.fails: dict[str, Code] = {}
        self.calls: list[str] = []
        self.lost = OK
        self._next = 1

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if not name.startswith("cuda") or not callable(found):
            return found
        fails: dict[str, Code] = object.__getattribute__(self, "fails")

        def call(*args: Any) -> Any:
            self.calls.append(name)
            code = self.lost or fails.get(name, OK)
            return (code, None) if code and name not in _NEVER_FAIL else found(*args)

        return call

    @property
    def used(self) -> int:
        return sum(len(block) for block in self.device.values())

    def cudaGetErrorString(self, code: Code) -> tuple[Code, bytes]:  # noqa: N802
        return OK, {FULL: b"out of memory", ILLEGAL: b"an illegal memory access was encountered"}.get(
            code, b"bad"
        )

    def cudaGetLastError(self) -> tuple[Code]:  # noqa: N802
        return (OK,)

    def cudaMemGetInfo(self) -> tuple[Code, int, int]:  # noqa: N802
        return OK, self.memory - self.used, self.memory

    def cudaMalloc(self, size: int) -> tuple[Code, int | None]:  # noqa: N802
        if self.used + size > self.memory:
            return FULL, None
        return OK, self._new(self.device, size)

    def cudaFree(self, address: int) -> tuple[Code]:  # noqa: N802
        return (OK if not address or self.device.pop(address, None) is not None else REFUSED,)

    def cudaHostAlloc(self, size: int, flags: int) -> tuple[Code, int]:  # noqa: N802
        return OK, self._new(self.host, size)

    def cudaFreeHost(self, address: int) -> tuple[Code]:  # noqa: N802
        return (OK if self.host.pop(address, None) is not None else REFUSED,)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Code, int]:  # noqa: N802
        self._next += 1
        self.streams[self._next] = []
        return OK, self._next

    def cudaStreamDestroy(self, stream: int) -> tuple[Code]:  # noqa: N802
        return (OK if self.streams.pop(stream, None) is not None else REFUSED,)

    def cudaMemcpyAsync(  # noqa: N802
        self, to: int, source: int, size: int, kind: int, stream: int
    ) -> tuple[Code]:
        self.queue(stream, lambda: ctypes.memmove(to, source, size))
        return (OK,)

    def cudaMemsetAsync(self, to: int, value: int, size: int, stream: int) -> tuple[Code]:  # noqa: N802
        self.queue(stream, lambda: ctypes.memset(to, value, size))
        return (OK,)

    def cudaMemcpy3DAsync(self, asked: SimpleNamespace, stream: int) -> tuple[Code]:  # noqa: N802
        size, rows, slices = asked.extent
        ends = ((asked.dstPtr, asked.dstPos), (asked.srcPtr, asked.srcPos))

        def place(end: Any, slice_: int, row: int) -> int:
            (address, pitch, height), (byte, first, _) = end
            assert byte + size <= pitch, "beyond the end of a row"
            assert first + rows <= height, "beyond the end of a slice"
            return int(address + ((slice_ * height) + first + row) * pitch + byte)

        def copy() -> None:
            for slice_ in range(slices):
                for row in range(rows):
                    to, source = (place(end, slice_, row) for end in ends)
                    ctypes.memmove(to, source, size)

        self.queue(stream, copy)
        return (OK,)

    def holds(self, address: int, size: int = 1) -> bool:
        """Whether so many bytes lie in one piece of memory that was asked for."""
        return any(start <= address <= start + len(block) - size for start, block in self.device.items())

    def cudaStreamSynchronize(self, stream: int) -> tuple[Code]:  # noqa: N802
        if stream in self.captured:
            return (INVALIDATED,)
        while self.streams[stream]:
            for waiting in self.streams.values():
                if waiting and waiting[0]() is not WAITS:
                    waiting.pop(0)
        return (self.lost,)

    def cudaEventCreateWithFlags(self, flags: int) -> tuple[Code, int]:  # noqa: N802
        self._next += 1
        self.events[self._next] = [0, 0]
        return OK, self._next

    def cudaEvent_t(self, handle: int) -> int:  # noqa: N802
        return handle

    def cudaEventDestroy(self, event: int) -> tuple[Code]:  # noqa: N802
        return (OK if self.events.pop(event, None) is not None else REFUSED,)

    def cudaEventRecord(self, event: int, stream: int) -> tuple[Code]:  # noqa: N802
        counts = self.events[event]
        counts[0] += 1
        now = counts[0]
        self.queue(stream, lambda: counts.__setitem__(1, now))
        return (OK,)

    def cudaStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple[Code]:  # noqa: N802
        counts = self.events[event]
        wanted = counts[0]
        self.queue(stream, lambda: None if counts[1] >= wanted else WAITS)
        return (OK,)

    def cudaEventSynchronize(self, event: int) -> tuple[Code]:  # noqa: N802
        counts = self.events[event]
        for stream in [*self.streams] if counts[1] < counts[0] else ():
            self.cudaStreamSynchronize(stream)
        return (self.lost,)

    def cudaStreamBeginCapture(self, stream: int, mode: int) -> tuple[Code]:  # noqa: N802
        self.captured[stream] = []
        return (OK,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[Code, int | None]:  # noqa: N802
        self._next += 1
        self.graphs[self._next] = self.captured.pop(stream)
        return OK, self._next

    def cudaGraphInstantiate(self, graph: int, flags: int) -> tuple[Code, int]:  # noqa: N802
        self._next += 1
        self.graphs[self._next] = self.graphs[graph]
        return OK, self._next

    def cudaGraphDestroy(self, graph: int) -> tuple[Code]:  # noqa: N802
        return (OK if self.graphs.pop(graph, None) is not None else REFUSED,)

    def cudaGraphExec_t(self, handle: int) -> int:  # noqa: N802
        return handle

    def cudaGraphExecDestroy(self, graph: int) -> tuple[Code]:  # noqa: N802
        return (OK if self.graphs.pop(graph, None) is not None else REFUSED,)

    def cudaGraphLaunch(self, graph: int, stream: int) -> tuple[Code]:  # noqa: N802
        for work in self.graphs[graph]:
            self.queue(stream, work)
        return (OK,)

    def queue(self, stream: int, work: Work) -> None:
        """Put work behind what waits on a stream, or into the graph that is captured there."""
        self.captured.get(stream, self.streams[stream]).append(work)

    def _new(self, blocks: dict[int, ctypes.Array[Any]], size: int) -> int:
        block = (ctypes.c_uint8 * size)()
        # Nobody may count on memory being clean.
        ctypes.memset(block, 0xA5, size)
        address = ctypes.addressof(block)
        blocks[address] = block
        return address


_NEVER_FAIL = frozenset({"cudaGetErrorString", "cudaGetLastError", "cudaGraphExec_t", "cudaEvent_t"})


class DataType(Enum):
    """Types by TensorRT's names; it has int32 where graphs have int64, as 8.6 does."""

    FLOAT = "float32"
    HALF = "float16"
    INT32 = "int32"
    INT64 = "int64"


class FakeEngine:
    """An engine whose layers are ONNX Runtime's."""

    def __init__(self, engine: Engine, cudart: FakeCudart, scratch: int = 1 << 16) -> None:
        self.engine, self.cudart = engine, cudart
        self.device_memory_size = scratch
        self.session = ort.InferenceSession(engine.graph.path, providers=["CPUExecutionProvider"])
        self.contexts = 0

    def get_tensor_dtype(self, name: str) -> DataType:
        spec = next(s for s in (*self.engine.inputs, *self.engine.outputs) if s.name == name)
        return DataType("int32" if spec.dtype == "int64" else spec.dtype)

    def create_execution_context_without_device_memory(self) -> FakeContext:
        self.contexts += 1
        return FakeContext(self)


class FakeContext:
    """A context of the fake engine."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.device_memory = 0
        self.addresses: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.settled: dict[str, tuple[int, ...]] = {}
        self.profile: Profile | None = None
        self.profiler: Any = None

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self.profile = self.engine.engine.plan.profiles[index]
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert self.profile is not None, "no profile is set"
        spec = next(s for s in self.engine.engine.inputs if s.name == name)
        low, _, high = self.profile.shapes(spec)
        self.shapes[name] = shape
        return all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True))

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        engine = self.engine.engine
        sizes = {
            str(dim): size
            for spec in engine.inputs
            for dim, size in zip(spec.shape, self.shapes[spec.name], strict=True)
        }
        spec = next(s for s in (*engine.inputs, *engine.outputs) if s.name == name)
        return spec.sized(sizes)

    def execute_async_v3(self, stream: int) -> bool:
        cudart, shapes, addresses = self.engine.cudart, dict(self.shapes), dict(self.addresses)
        ready = self.device_memory in cudart.device and all(map(cudart.holds, addresses.values()))
        if stream in cudart.captured and self.settled != shapes:
            return False
        self.settled = shapes
        if self.profiler is not None:
            for name in ("first", "second"):
                self.profiler.report_layer_time(name, 0.5)
        if ready:
            outputs = {s.name: self.get_tensor_shape(s.name) for s in self.engine.engine.outputs}
            scratch, mine = self.device_memory, id(self) % 251
            cudart.queue(stream, lambda: self._compute(shapes, outputs, addresses, (scratch, mine)))
            cudart.queue(stream, lambda: self._check(outputs, addresses, (scratch, mine)))
        return ready

    def _check(
        self, outputs: dict[str, tuple[int, ...]], addresses: dict[str, int], activations: tuple[int, int]
    ) -> None:
        """Whoever else computed in the same memory meanwhile has spoilt the answers."""
        scratch, mine = activations
        held = all(map(self.engine.cudart.holds, (scratch, *addresses.values())))
        if held and _array(scratch, "uint8", (1,))[0] != mine:
            for name, shape in outputs.items():
                _array(addresses[name], self.engine.get_tensor_dtype(name).value, shape)[...] = -1

    def _compute(
        self,
        shapes: dict[str, tuple[int, ...]],
        outputs: dict[str, tuple[int, ...]],
        addresses: dict[str, int],
        activations: tuple[int, int],
    ) -> None:
        engine, (scratch, mine) = self.engine, activations
        taken = {
            name: _bytes(engine.get_tensor_dtype(name).value, s) for name, s in (shapes | outputs).items()
        }
        lie = [engine.cudart.holds(addresses[name], size) for name, size in taken.items()]
        if not engine.cudart.holds(scratch) or not all(lie):
            engine.cudart.lost = ILLEGAL
            return
        _array(scratch, "uint8", (1,))[...] = mine
        specs = {spec.name: spec for spec in engine.engine.inputs}
        feeds = {
            name: _array(addresses[name], engine.get_tensor_dtype(name).value, shape).astype(
                specs[name].dtype
            )
            for name, shape in shapes.items()
        }
        for name, answer in zip(outputs, engine.session.run(list(outputs), feeds), strict=True):
            _array(addresses[name], engine.get_tensor_dtype(name).value, outputs[name])[...] = answer


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape)) * np.dtype(dtype).itemsize


def _array(address: int, dtype: str, shape: tuple[int, ...]) -> Any:
    size = _bytes(dtype, shape)
    block = memoryview((ctypes.c_uint8 * size).from_address(address))
    return np.frombuffer(block, dtype).reshape(shape)
