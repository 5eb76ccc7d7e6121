"""CUDA through cuda-bindings, the only importer of it: devices, memory, streams, graphs; every code checked."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alula.core.errors import DeviceLostError, EngineError, MissingExtraError, OutOfMemoryError, RunError

OUT_OF_MEMORY = 2

# After one of these every further call of the process fails with it too.
# https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html: "must be terminated and relaunched"
STICKY = frozenset({214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721})

_TO_DEVICE, _TO_HOST = "cudaMemcpyHostToDevice", "cudaMemcpyDeviceToHost"
_NON_BLOCKING = 1  # cudaStreamNonBlocking
_NO_TIMES = 2  # cudaEventDisableTiming

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A GPU; `capability` is its compute capability, such as "9.0"."""

    name: str
    capability: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that was asked for once: an address, and how many bytes lie there."""

    address: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows of bytes on the GPU, in slices of so many rows, and the byte and the row in each where a block begins."""

    address: int
    row_bytes: int
    rows: int
    byte: int
    row: int


class Cuda:
    """The calls that engines need. A call that fails raises, so nothing returns a code.

    After an error that stays, `lost` says which, and every further call raises it again.
    """

    def __init__(self, binding: Any | None = None) -> None:
        self._rt = binding if binding is not None else _binding()
        self.lost = ""

    def start(self) -> None:
        """Make this process's context on the GPU, which takes most of the time to a first answer."""
        self._call("cudaFree", 0)

    def free_bytes(self) -> tuple[int, int]:
        """How much of the GPU's memory is free, whoever has the rest, and how much there is."""
        free, total = self._call("cudaMemGetInfo")
        return int(free), int(total)

    def malloc(self, size: int) -> Buffer:
        """Memory on the GPU."""
        return Buffer(int(self._call("cudaMalloc", size, asked=size)), size) if size else Buffer(0, 0)

    def free(self, buffer: Buffer) -> None:
        """Give memory on the GPU back."""
        if buffer.address:
            self._call("cudaFree", buffer.address)

    def malloc_pinned(self, size: int) -> Buffer:
        """Page-locked memory of the host, from which copies run beside other work."""
        return Buffer(int(self._call("cudaHostAlloc", size, 0, asked=size)), size) if size else Buffer(0, 0)

    def free_pinned(self, buffer: Buffer) -> None:
        """Give page-locked memory back."""
        if buffer.address:
            self._call("cudaFreeHost", buffer.address)

    def stream(self) -> int:
        """A new stream that waits for no other one."""
        return int(self._call("cudaStreamCreateWithFlags", _NON_BLOCKING))

    def destroy_stream(self, stream: int) -> None:
        """Release a stream."""
        self._call("cudaStreamDestroy", stream)

    def copy_in(self, to: Buffer, host: Buffer, size: int, stream: int) -> None:
        """Queue a copy from the host's memory."""
        self._copy(to, host, size, _TO_DEVICE, stream)

    def copy_out(self, host: Buffer, device: Buffer, size: int, stream: int) -> None:
        """Queue a copy into the host's memory."""
        self._copy(host, device, size, _TO_HOST, stream)

    def copy_block(self, to: Rows, source: Rows, size: tuple[int, int, int], stream: int) -> None:
        """Queue a copy on the GPU of so many bytes of so many rows of so many slices."""
        asked = self._rt.cudaMemcpy3DParms()
        asked.kind = self._rt.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        asked.extent = self._rt.make_cudaExtent(*size)
        asked.srcPtr, asked.dstPtr = (
            self._rt.make_cudaPitchedPtr(each.address, each.row_bytes, each.row_bytes, each.rows)
            for each in (source, to)
        )
        asked.srcPos, asked.dstPos = (self._rt.make_cudaPos(each.byte, each.row, 0) for each in (source, to))
        self._call("cudaMemcpy3DAsync", asked, stream)

    def clear(self, buffer: Buffer, stream: int) -> None:
        """Queue zeros for all of a buffer."""
        self._call("cudaMemsetAsync", buffer.address, 0, buffer.size, stream)

    def synchronize(self, stream: int) -> None:
        """Wait until all that was queued is done; an error of it shows here."""
        self._call("cudaStreamSynchronize", stream)

    def event(self) -> int:
        """A mark that streams set and wait for."""
        return int(self._call("cudaEventCreateWithFlags", _NO_TIMES))

    def destroy_event(self, event: int) -> None:
        """Release a mark."""
        self._call("cudaEventDestroy", self._rt.cudaEvent_t(event))

    def record(self, event: int, stream: int) -> None:
        """Set the mark behind what is queued on a stream."""
        self._call("cudaEventRecord", self._rt.cudaEvent_t(event), stream)

    def wait_for(self, event: int, stream: int) -> None:
        """Let a stream go on when the mark is reached; nothing waits on the host."""
        self._call("cudaStreamWaitEvent", stream, self._rt.cudaEvent_t(event), 0)

    def wait_until(self, event: int) -> None:
        """Wait until the mark is reached."""
        self._call("cudaEventSynchronize", self._rt.cudaEvent_t(event))

    def capture(self, stream: int, enqueue: Callable[[], None]) -> int:
        """A graph of what `enqueue` queues on the stream, which is not run."""
        mode = self._rt.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", stream, mode)
        try:
            enqueue()
        except BaseException:
            # Ends the capture; what it gives is of no use.
            self._rt.cudaStreamEndCapture(stream)
            self._rt.cudaGetLastError()
            raise
        graph = self._call("cudaStreamEndCapture", stream)
        try:
            return int(self._call("cudaGraphInstantiate", graph, 0))
        finally:
            self._call("cudaGraphDestroy", graph)

    def launch(self, graph: int, stream: int) -> None:
        """Queue a captured graph."""
        self._call("cudaGraphLaunch", self._rt.cudaGraphExec_t(graph), stream)

    def destroy_graph(self, graph: int) -> None:
        """Release a captured graph."""
        self._call("cudaGraphExecDestroy", self._rt.cudaGraphExec_t(graph))

    def _copy(self, to: Buffer, source: Buffer, size: int, kind: str, stream: int) -> None:
        kinds = self._rt.cudaMemcpyKind
        self._call("cudaMemcpyAsync", to.address, source.address, size, getattr(kinds, kind), stream)

    def _call(self, name: str, *args: Any, asked: int = 0) -> Any:
        if self.lost:
            raise DeviceLostError(self.lost)
        code, *given = getattr(self._rt, name)(*args)
        if int(code) != 0:
            self._refuse(name, int(code), code, asked)
        return given[0] if len(given) == 1 else tuple(given)

    def _refuse(self, call: str, number: int, code: Any, asked: int) -> None:
        said = f"{call}: {getattr(code, 'name', code)} ({number}): {self._words(code)}"
        if number in STICKY:
            self.lost = f"the GPU is lost to this process after {said}; start the process again"
            raise DeviceLostError(self.lost)
        self._rt.cudaGetLastError()
        if number == OUT_OF_MEMORY:
            free, total = (int(size) for size in self._rt.cudaMemGetInfo()[1:])
            raise OutOfMemoryError(
                f"GPU out of memory: {mib(asked)} asked for, {mib(free)} of {mib(total)} free; "
                "lower the largest sizes of the profile, or free memory that other processes hold"
            )
        raise RunError(said)

    def _words(self, code: Any) -> str:
        text = self._rt.cudaGetErrorString(code)[1]
        return text.decode() if isinstance(text, bytes) else str(text)


def view(buffer: Buffer, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """An array over the host's memory at a buffer's beginning; it must not outlive the buffer."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if size > buffer.size:
        raise RunError(f"{shape} of {dtype} takes {size} bytes, the buffer has {buffer.size}")
    memory = memoryview((ctypes.c_uint8 * size).from_address(buffer.address))
    return np.frombuffer(memory, dtype=dtype).reshape(shape)


def mib(size: int) -> str:
    """Bytes for people."""
    return f"{size / 2**20:.0f} MiB"


def installed() -> bool:
    """Whether cuda-bindings is there; it is not imported."""
    try:
        return find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        return False


def devices() -> tuple[Device, ...]:
    """The GPUs of this machine; none where there is no driver or cuda-bindings is not installed."""
    binding = _found()
    if binding is None:
        return ()
    code, count = binding.cudaGetDeviceCount()
    if int(code) != 0:
        return ()
    asked = (binding.cudaGetDeviceProperties(index) for index in range(count))
    return tuple(_device(properties) for code, properties in asked if int(code) == 0)


def _device(properties: Any) -> Device:
    name = properties.name.decode() if isinstance(properties.name, bytes) else str(properties.name)
    return Device(
        name=name.rstrip("\0"),
        capability=f"{properties.major}.{properties.minor}",
        memory_bytes=int(properties.totalGlobalMem),
    )


def driver_version() -> str | None:
    """The newest CUDA that the driver serves, such as "13.0"; None where there is no driver."""
    binding = _found()
    if binding is None:
        return None
    code, version = binding.cudaDriverGetVersion()
    return f"{version // 1000}.{version % 1000 // 10}" if int(code) == 0 and version else None


def _found() -> Any | None:
    if not installed():
        return None
    try:
        return _loaded()
    except (ImportError, RuntimeError):
        return None


def _binding() -> Any:
    if not installed():
        raise MissingExtraError("running on a GPU", "tensorrt")
    try:
        return _loaded()
    except (ImportError, RuntimeError) as error:
        raise EngineError(f"cuda-bindings cannot be loaded: {error}") from error


def _loaded() -> Any:
    # Before the first call: kernels are loaded when they are first used. Libraries built for CUDA before 12.2, TensorRT
    # 8.6 among them, would load all of theirs, which takes time and the GPU's memory.
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    return import_module("cuda.bindings.runtime")
