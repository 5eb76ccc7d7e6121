"""What NVIDIA's management library says of GPUs; nothing where there is none, or no `nvidia-ml-py` to ask it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU now: `busy` is the share of the last moments in which a kernel ran, `held` bytes by process."""

    index: int
    name: str
    busy: float
    used_bytes: int
    total_bytes: int
    held: Mapping[int, int] = field(default_factory=dict)


def nvml() -> Any | None:
    """The library, started; None where that cannot be."""
    try:
        import pynvml  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.info("no GPU to watch: %s", error)
        return None
    return pynvml


def gpus(library: Any) -> Iterator[Gpu]:
    """Every GPU that can be asked."""
    for index in range(library.nvmlDeviceGetCount()):
        if found := _gpu(library, index):
            yield found


def _gpu(library: Any, index: int) -> Gpu | None:
    """One GPU; what it does not tell is 0, as parts of a GPU tell less than a whole one."""
    try:
        device = library.nvmlDeviceGetHandleByIndex(index)
        memory = library.nvmlDeviceGetMemoryInfo(device)
        name = _text(library.nvmlDeviceGetName(device))
    except library.NVMLError as error:
        log.info("GPU %d says nothing: %s", index, error)
        return None
    return Gpu(
        index=index,
        name=name,
        busy=_busy(library, device),
        used_bytes=int(memory.used),
        total_bytes=int(memory.total),
        held=_held(library, device),
    )


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


def _busy(library: Any, device: Any) -> float:
    try:
        return float(library.nvmlDeviceGetUtilizationRates(device).gpu) / 100
    except library.NVMLError:
        return 0.0


def _held(library: Any, device: Any) -> Mapping[int, int]:
    """Bytes by process; in a container the library may know them by other numbers than we do."""
    try:
        processes = library.nvmlDeviceGetComputeRunningProcesses(device)
    except library.NVMLError:
        return {}
    return {int(each.pid): int(each.usedGpuMemory or 0) for each in processes}


class GpuUsage(Collector):
    """What GPUs do and hold, and what of it engine processes hold, by their names."""

    def __init__(self, found: Callable[[], Sequence[Gpu]], pids: Callable[[], Mapping[str, int]]) -> None:
        self._found = found
        self._pids = pids

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Nothing at all where there is no GPU."""
        found = self._found()
        if not found:
            return
        labels = ["gpu", "name"]
        busy = GaugeMetricFamily("alula_gpu_utilization_ratio", "Share of time a GPU is busy", labels=labels)
        used = GaugeMetricFamily(
            "alula_gpu_memory_used_bytes", "Memory of a GPU that is taken", labels=labels
        )
        total = GaugeMetricFamily("alula_gpu_memory_total_bytes", "Memory that a GPU has", labels=labels)
        held = GaugeMetricFamily(
            "alula_engine_gpu_memory_bytes", "Memory of a GPU that an engine holds", labels=["engine", "gpu"]
        )
        for gpu in found:
            which = [str(gpu.index), gpu.name]
            busy.add_metric(which, gpu.busy)
            used.add_metric(which, gpu.used_bytes)
            total.add_metric(which, gpu.total_bytes)
            for name, pid in self._pids().items():
                if pid in gpu.held:
                    held.add_metric([name, which[0]], gpu.held[pid])
        yield from (busy, used, total, held)


def watched(pids: Callable[[], Mapping[str, int]]) -> GpuUsage | None:
    """The GPUs of this machine to be watched; None where there are none to ask."""
    library = nvml()
    return None if library is None else GpuUsage(lambda: tuple(gpus(library)), pids)
