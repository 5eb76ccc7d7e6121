"""Load time and peak memory of one engine, in a process of its own: memory that was once taken is never unseen.

The caller writes the child: a command that calls `watch` and prints `line_of` its result. This room knows no engine.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from alula.core.engine import Session
from alula.core.errors import ManifestError, RunError
from alula.core.parse import get
from alula.core.tensor import Feeds


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """What an engine alone in a process takes: until it is loaded, and at most."""

    load_ms: float
    peak_host_bytes: int
    peak_device_bytes: int = 0


def watch(
    opened: Callable[[], Session],
    feeds: Sequence[Feeds],
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Footprint:
    """Open a session, run each of `feeds` once, and say what this process has taken. For the child."""
    begun = clock()
    session = opened()
    load_ms = (clock() - begun) / 1e6
    for each in feeds:
        session.run(each)
    session.close()
    return Footprint(load_ms=load_ms, peak_host_bytes=peak_host_bytes())


def peak_host_bytes() -> int:
    """Most memory this process had resident since it started."""
    # getrusage's ru_maxrss survives exec on Linux: a child would report its parent's peak. VmHWM does not.
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text("ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def line_of(footprint: Footprint) -> str:
    """What the child prints, alone on its last line."""
    return json.dumps(asdict(footprint))


def measure_apart(command: Sequence[str], timeout_s: float = 120.0) -> Footprint:
    """Run the child and read its last line."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise RunError(f"measuring apart took more than {timeout_s:g} s: {' '.join(command)}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunError(f"measuring apart ended with {done.returncode}: {last}: {' '.join(command)}")
    try:
        raw = json.loads((done.stdout.strip().splitlines() or [""])[-1])
        return Footprint(
            load_ms=get(raw, float, "load_ms"),
            peak_host_bytes=get(raw, int, "peak_host_bytes"),
            peak_device_bytes=get(raw, int, "peak_device_bytes"),
        )
    except (ValueError, TypeError, ManifestError) as error:
        raise RunError(f"measuring apart printed no footprint: {error}: {' '.join(command)}") from error
