"""How much memory there is left to take."""

from __future__ import annotations

from pathlib import Path

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
# What a container may have and has, as the kernel's newer interface says it and as the older one does.
_CGROUPS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def free_bytes(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int | None:
    """What the machine can give without swapping, or the container if that is less; None where nothing says it."""
    found = [_available(proc / "meminfo")]
    for limit, usage in _CGROUPS:
        most, taken = _number(cgroup / limit), _number(cgroup / usage)
        if most is not None and taken is not None:
            found.append(max(0, most - taken))
    return min((each for each in found if each is not None), default=None)


def _available(path: Path) -> int | None:
    """MemAvailable of a meminfo, which counts what caches would give back."""
    for line in _text(path).splitlines():
        name, _, size = line.partition(":")
        if name == "MemAvailable":
            return int(size.split()[0]) * 1024
    return None


def _number(path: Path) -> int | None:
    """A file's number; "max" is none."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
