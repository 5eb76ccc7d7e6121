"""What processes of this machine take, as Linux tells it; elsewhere nothing is said."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

PROC = Path("/proc")
UTIME, RSS = 11, 21
"""Places in /proc/PID/stat behind the name of the program, which may hold blanks itself (man 5 proc)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Of one process: seconds of CPU since it was started, and bytes of memory that it holds."""

    cpu_s: float
    memory_bytes: int


def usage_of(pid: int, proc: Path = PROC) -> Usage | None:
    """What a process takes; None for one that is gone."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    ticks = int(fields[UTIME]) + int(fields[UTIME + 1])
    return Usage(
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        memory_bytes=int(fields[RSS]) * os.sysconf("SC_PAGE_SIZE"),
    )


class EnginesUp(Collector):
    """Which engine processes answer, by their names and the devices that they were given."""

    def __init__(self, answer: Callable[[], Mapping[tuple[str, str], bool]]) -> None:
        self._answer = answer

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One line for each."""
        up = GaugeMetricFamily("alula_engine_up", "Whether the engine answers", labels=["engine", "device"])
        for labels, answers in self._answer().items():
            up.add_metric(labels, answers)
        yield up


class EngineUsage(Collector):
    """CPU and memory of engine processes, by their names, read when they are asked for."""

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        self._pids = pids

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Two metrics, without lines for processes that are gone."""
        cpu = CounterMetricFamily(
            "alula_engine_cpu_seconds", "CPU that engine processes have used", labels=["engine"]
        )
        memory = GaugeMetricFamily(
            "alula_engine_resident_memory_bytes", "Memory that engine processes hold", labels=["engine"]
        )
        for name, pid in self._pids().items():
            if usage := usage_of(pid):
                cpu.add_metric([name], usage.cpu_s)
                memory.add_metric([name], usage.memory_bytes)
        yield from (cpu, memory)
