"""The machine an engine is compiled for and runs on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

# What decides which kernels a CPU runtime picks, hence what a compiled engine holds: name here, flag in Linux.
FEATURES = (
    ("avx2", "avx2"),
    ("avx512", "avx512f"),
    ("vnni", "avx512_vnni"),
    ("bf16", "avx512_bf16"),
    ("amx", "amx_tile"),
    ("sve", "sve"),
)
CPUINFO = Path("/proc/cpuinfo")


def features(cpuinfo: str) -> tuple[str, ...]:
    """The features of a CPU that matter here, read off the text of /proc/cpuinfo."""
    flags: set[str] = set()
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"flags", "Features"}:
            flags.update(value.split())
    return tuple(name for name, flag in FEATURES if flag in flags)


def target(runtime: str, version: str) -> str:
    """Runtime, version, architecture and CPU features: engines move between machines where all four are equal."""
    found = features(CPUINFO.read_text()) if CPUINFO.exists() else (platform.system().lower(),)
    return " ".join((runtime, version, platform.machine(), *found))


def usable_cores() -> int:
    """Cores this process may use, which a container or taskset makes fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_or_all(threads: int) -> int:
    """`threads`, where 0 stands for every usable core."""
    return threads if threads > 0 else usable_cores()
