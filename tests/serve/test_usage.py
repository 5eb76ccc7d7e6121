from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from served import metric, running, wait_until

from alula.serve.gpus import Gpu, GpuUsage, gpus, nvml
from alula.serve.usage import usage_of

STAT = "7 (a) b (c) S " + " ".join(str(number) for number in range(1, 50))


def test_a_process_is_read_as_the_manual_has_it(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(STAT)
    found = usage_of(7, tmp_path)
    assert found is not None
    # Fields 14, 15 and 24 of man 5 proc; the numbers here begin with field 4.
    assert found.cpu_s * os.sysconf("SC_CLK_TCK") == 11 + 12
    assert found.memory_bytes == 21 * os.sysconf("SC_PAGE_SIZE")
    assert usage_of(8, tmp_path) is None


def test_cpu_and_memory_of_a_process_grow_with_what_it_does() -> None:
    code = "held = bytearray(64 << 20)\nprint('there', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            first = usage_of(process.pid)
            assert first is not None
            assert first.memory_bytes > 64 << 20
            wait_until(lambda: (usage_of(process.pid) or first).cpu_s > first.cpu_s)
        finally:
            process.kill()


def test_the_engine_process_is_told_of_by_itself_and_so_is_the_one_after_it(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]]) as server:
        assert metric(server, "alula_engine_resident_memory_bytes", engine="0") > 1 << 20
        assert metric(server, "alula_engine_cpu_seconds_total", engine="0") > 0
        assert metric(server, "process_cpu_seconds_total") > 0
        os.kill(server.engine_pid(), signal.SIGKILL)
        wait_until(server.restarted)
        assert metric(server, "alula_engine_resident_memory_bytes", engine="0") > 1 << 20
        assert "alula_gpu" not in server.client.get("/metrics").text or nvml() is not None


class NoGpu(Exception):  # noqa: N818 - as NVML says it
    pass


class Library:
    """NVML as far as it is asked: two GPUs, of which the second one is lost and the first tells no use."""

    NVMLError = NoGpu

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index:
            raise NoGpu("lost")
        return index

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=3, total=8)

    def nvmlDeviceGetName(self, device: int) -> bytes:  # noqa: N802
        return b"H200"

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:  # noqa: N802
        raise NoGpu("not supported")

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=12, usedGpuMemory=2), SimpleNamespace(pid=13, usedGpuMemory=None)]


def test_a_gpu_that_is_lost_or_tells_less_costs_nothing_else() -> None:
    assert list(gpus(Library())) == [
        Gpu(index=0, name="H200", busy=0.0, used_bytes=3, total_bytes=8, held={12: 2, 13: 0})
    ]


def test_gpus_are_told_with_what_engines_hold_of_them_and_without_gpus_nothing_is() -> None:
    registry = CollectorRegistry()
    registry.register(GpuUsage(lambda: tuple(gpus(Library())), lambda: {"0": 12, "1": 99}))
    text = generate_latest(registry).decode()
    assert 'alula_gpu_memory_used_bytes{gpu="0",name="H200"} 3.0' in text
    assert 'alula_gpu_memory_total_bytes{gpu="0",name="H200"} 8.0' in text
    assert 'alula_engine_gpu_memory_bytes{engine="0",gpu="0"} 2.0' in text
    assert 'engine="1"' not in text
    none = CollectorRegistry()
    none.register(GpuUsage(tuple, dict))
    assert generate_latest(none) == b""
