from __future__ import annotations

import sys

import numpy as np
import pytest

from alula.bench.apart import Footprint, line_of, measure_apart, peak_host_bytes, watch
from alula.core.engine import Session
from alula.core.errors import RunError
from alula.core.tensor import Feeds, TensorSpec


class Noted:
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()

    def __init__(self) -> None:
        self.seen: list[str] = []

    def run(self, feeds: Feeds) -> Feeds:
        self.seen += feeds
        return {}

    def close(self) -> None:
        self.seen.append("closed")


CHILD = """
import sys
from alula.bench.apart import Footprint, line_of, peak_host_bytes
held = bytearray({size})
print("a runtime's own chatter")
print(line_of(Footprint(load_ms=1.5, peak_host_bytes=peak_host_bytes())))
"""


def child(size: int) -> list[str]:
    return [sys.executable, "-c", CHILD.format(size=size)]


def test_a_child_opens_runs_closes_and_reports() -> None:
    session = Noted()
    ticks = iter([0, 2_500_000])

    def opened() -> Session:
        return session

    feeds = [{"a": np.zeros(1)}, {"b": np.zeros(1)}]
    footprint = watch(opened, feeds, clock=lambda: next(ticks))
    assert session.seen == ["a", "b", "closed"]
    assert footprint.load_ms == 2.5
    assert footprint.peak_host_bytes > 1e7


def test_memory_that_a_child_takes_is_seen_and_that_of_its_parent_is_not() -> None:
    held = np.ones(40_000_000)  # 320 MB here, so that inheriting this peak would show
    small = measure_apart(child(0))
    large = measure_apart(child(100_000_000))
    assert small.load_ms == 1.5
    assert peak_host_bytes() > held.nbytes > small.peak_host_bytes
    assert 90e6 < large.peak_host_bytes - small.peak_host_bytes < 110e6


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise SystemExit('the library is missing')", "ended with 1: the library is missing"),
        ("print('no json')", "printed no footprint"),
        ("print('[]')", "printed no footprint"),
        ("", "printed no footprint"),
        ("print('{\"load_ms\": 1}')", "peak_host_bytes: is missing"),
    ],
)
def test_a_child_that_fails_is_named_with_what_it_said(source: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        measure_apart([sys.executable, "-c", source])


def test_a_child_that_hangs_is_stopped() -> None:
    with pytest.raises(RunError, match=r"took more than 0\.3 s"):
        measure_apart([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.3)


def test_what_is_printed_is_one_line() -> None:
    assert "\n" not in line_of(Footprint(load_ms=1.0, peak_host_bytes=1))
