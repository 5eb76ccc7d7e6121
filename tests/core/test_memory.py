from __future__ import annotations

from pathlib import Path

import pytest

from alula.core.memory import free_bytes

MEMINFO = "MemTotal:       24731184 kB\nMemFree:         1477588 kB\nMemAvailable:    8000 kB\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/meminfo": MEMINFO}, 8_192_000),
        ({"proc/meminfo": "MemTotal: 5 kB\n"}, None),
        ({"proc/meminfo": MEMINFO, "cgroup/memory.max": "max\n", "cgroup/memory.current": "5\n"}, 8_192_000),
        ({"proc/meminfo": MEMINFO, "cgroup/memory.max": "900\n", "cgroup/memory.current": "500\n"}, 400),
        ({"cgroup/memory.max": "900\n", "cgroup/memory.current": "1000\n"}, 0),
        (
            {
                "proc/meminfo": MEMINFO,
                "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "cgroup/memory/memory.usage_in_bytes": "7\n",
            },
            8_192_000,
        ),
    ],
)
def test_what_is_free_is_what_machine_and_container_leave(
    files: dict[str, str], expected: int | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_bytes(tmp_path / "proc", tmp_path / "cgroup") == expected


def test_something_is_free_here() -> None:
    found = free_bytes()
    assert found is None or found > 1 << 20
