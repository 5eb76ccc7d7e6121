from __future__ import annotations

import json

import pytest

from alula.core.machine import FEATURES, cpu_features, features_of, installed, machine, parse_cpuinfo

ZEN3 = "processor\t: 0\nflags\t\t: fpu sse4_2 avx avx2 sha_ni\n\nprocessor\t: 1\nflags\t\t: fpu avx2\n"
SAPPHIRE = "flags\t\t: avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8\n"


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (ZEN3, ("avx2",)),
        (SAPPHIRE, ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")),
        ("Features\t: fp asimd sve\n", ("asimd", "sve")),
        ("", ()),
    ],
)
def test_features_are_read_off_cpuinfo(cpuinfo: str, expected: tuple[str, ...]) -> None:
    assert features_of(parse_cpuinfo(cpuinfo)) == expected


def test_the_machine_is_described_for_json() -> None:
    facts = machine()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["cores"] >= 1
    assert facts["cpu"]
    assert facts["packages"]["numpy"] == installed("numpy")
    assert set(facts["features"]) <= set(FEATURES)
    assert tuple(facts["features"]) == cpu_features()


def test_what_is_not_installed_has_no_version() -> None:
    assert installed("surely-not-installed-here") is None
