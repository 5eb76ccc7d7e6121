"""Clients in a closed loop against a server of any kind, and the CPU that each request takes; wrk is the client."""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LUA = Path(__file__).with_name("serving_load.lua")
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Load:
    """What clients in a closed loop saw, and milliseconds of CPU that each request took."""

    per_s: float
    p99_ms: float
    failed: int
    front_ms: float
    engine_ms: float
    generator_ms: float
    padding: float


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where to send bodies, and the processes that answer, the first of them the front."""

    url: str
    path: str
    pids: Sequence[int]


def loaded(target: Target, bodies: Path, clients: int, seconds: int) -> Load:
    """So many clients, each with one request at a time, all on one thread of wrk; the first process is the front."""
    cpu, own = [cpu_s(pid) for pid in target.pids], children_s()
    ran = subprocess.run(
        [
            *("wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "30s"),
            *("-s", str(LUA), target.url, "--", str(bodies), target.path),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    generator = children_s() - own
    found = json.loads(ran.stdout.splitlines()[-1])
    count = max(found["requests"], 1)
    front, *engines = ((cpu_s(pid) - at) / count * 1e3 for pid, at in zip(target.pids, cpu, strict=True))
    return Load(
        per_s=found["requests"] / found["seconds"],
        p99_ms=found["p99_ms"],
        failed=found["failed"],
        front_ms=front,
        engine_ms=sum(engines),
        generator_ms=generator / count * 1e3,
        padding=math.nan,
    )


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process took so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def children_s() -> float:
    """Seconds of CPU that processes took which were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
