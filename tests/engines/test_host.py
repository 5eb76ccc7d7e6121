from __future__ import annotations

import os

import pytest

from alula.core.machine import cpu_features
from alula.engines import host


def test_a_target_names_runtime_version_and_machine() -> None:
    runtime, version, *machine = host.target("openvino", "2026.4.1").split()
    assert (runtime, version) == ("openvino", "2026.4.1")
    assert machine[0] == os.uname().machine
    assert tuple(machine[1:]) == cpu_features() or len(machine) == 2


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
