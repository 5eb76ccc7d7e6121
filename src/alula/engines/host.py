"""The machine an engine is compiled for and runs on."""

from __future__ import annotations

import platform

from alula.core.machine import cpu_features, usable_cores


def target(runtime: str, version: str) -> str:
    """Runtime, version, architecture and CPU features: engines move between machines where all four are equal."""
    found = cpu_features() or (platform.system().lower(),)
    return " ".join((runtime, version, platform.machine(), *found))


def threads_or_all(threads: int) -> int:
    """`threads`, where 0 stands for every usable core."""
    return threads if threads > 0 else usable_cores()
