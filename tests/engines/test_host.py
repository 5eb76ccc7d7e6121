from __future__ import annotations

import os

import pytest

from alula.engines import host

ZEN3 = "processor\t: 0\nflags\t\t: fpu sse4_2 avx avx2 sha_ni\n\nprocessor\t: 1\nflags\t\t: fpu avx2\n"
SAPPHIRE = "flags\t\t: avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8\n"


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (ZEN3, ("avx2",)),
        (SAPPHIRE, ("avx2", "avx512", "vnni", "bf16", "amx")),
        ("Features\t: fp asimd sve\n", ("sve",)),
        ("", ()),
    ],
)
def test_features_are_read_off_cpuinfo(cpuinfo: str, expected: tuple[str, ...]) -> None:
    assert host.features(cpuinfo) == expected


def test_a_target_names_runtime_version_and_machine() -> None:
    runtime, version, *machine = host.target("openvino", "2026.4.1").split()
    assert (runtime, version) == ("openvino", "2026.4.1")
    assert machine[0] == os.uname().machine


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity mask")
def test_no_threads_means_one_per_core_this_process_may_use() -> None:
    before = os.sched_getaffinity(0)
    assert host.threads_or_all(0) == len(before)
    assert host.threads_or_all(3) == 3
    try:
        os.sched_setaffinity(0, {min(before)})
        assert host.threads_or_all(0) == 1
    finally:
        os.sched_setaffinity(0, before)
