from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from alula.bench import BenchRow, Measured, Ratio, RatioRow
from alula.core.check import Check
from alula.core.engine import Engine, Plan
from alula.core.graph import Graph
from alula.core.profile import Profile
from alula.rungs import Candidate, choose_rung

CHECK = Check(
    output="embedding",
    metric="cosine",
    samples=8,
    worst=0.9999,
    mean=1.0,
    limit=0.999,
    higher_is_better=True,
    reference="golden",
)


def candidate(precision: str, worst: float = 0.9999) -> Candidate:
    graph = Graph(
        path=Path(precision), digest="", opset=23, nodes=1, precision=precision, inputs=(), outputs=()
    )
    engine = Engine(
        backend="fake", target="fake 1", path=Path(precision), graph=graph, plan=Plan(profile=Profile({}))
    )
    return Candidate(
        precision=precision,
        graphs={"encoder": graph},
        engines={"encoder": engine},
        checks=(replace(CHECK, worst=worst),),
    )


def measured(fp32: float, bf16: float | None = None, spread: float = 0.01, rounds: int = 15) -> Measured:
    """Times of fp32 and bf16, with an interval of the ratio that is `spread` to either side."""
    times = {"fp32": fp32} if bf16 is None else {"fp32": fp32, "bf16": bf16}
    rows = tuple(
        BenchRow(
            engine="fake",
            precision=precision,
            shape="1x128",
            runs=60,
            p50_ms=time,
            p90_ms=None,
            p99_ms=None,
            items_per_s=1e3 / time,
        )
        for precision, time in times.items()
    )
    ratios = []
    if bf16 is not None:
        median = fp32 / bf16
        low, high = (None, None) if rounds < 6 else (median - spread, median + spread)
        speed = Ratio(median=median, low=low, high=high, rounds=rounds)
        ratios = [RatioRow(shape="1x128", engine="fake bf16", baseline="fake fp32", ratio=speed)]
    return Measured(rows=rows, ratios=tuple(ratios))


@pytest.mark.parametrize(
    ("bf16", "spread", "worst", "taken", "reason"),
    [
        (5.0, 0.3, 0.9995, "bf16", "2.00 (1.70-2.30) times as fast as fp32"),
        (9.9, 0.001, 0.9995, "fp32", "no sure gain: 1.01"),
        (8.0, 0.3, 0.9995, "fp32", "no sure gain: 1.25 (0.95-1.55)"),  # by noise, it may be
        (20.0, 0.01, 0.9995, "fp32", "no sure gain: 0.50"),
        (5.0, 0.01, 0.9, "fp32", "embedding cosine 0.9, limit 0.999"),
        (5.0, 0.01, float("nan"), "fp32", "embedding cosine nan, limit 0.999"),
    ],
)
def test_the_fastest_within_the_limits_is_taken_if_it_surely_is(
    bf16: float, spread: float, worst: float, taken: str, reason: str
) -> None:
    chosen, rungs = choose_rung([candidate("fp32"), candidate("bf16", worst)], measured(10.0, bf16, spread))
    assert chosen.precision == taken
    assert [rung.precision for rung in rungs if rung.taken] == [taken]
    assert rungs[1].reason.startswith(reason)
    assert [rung.p50_ms for rung in rungs] == [10.0, bf16]
    assert rungs[0].reason == ("bf16 is faster" if taken == "bf16" else "fastest within the limits")


def test_too_few_rounds_show_no_gain() -> None:
    chosen, _ = choose_rung([candidate("fp32"), candidate("bf16")], measured(10.0, 5.0, rounds=5))
    assert chosen.precision == "fp32"


def test_where_fp32_fails_a_slower_precision_that_holds_is_taken() -> None:
    chosen, _ = choose_rung([candidate("fp32", 0.5), candidate("bf16")], measured(1.0, 9.0))
    assert chosen.precision == "bf16"


def test_where_nothing_holds_the_first_is_kept_with_its_failed_checks() -> None:
    chosen, rungs = choose_rung([candidate("fp32", 0.5), candidate("bf16", 0.4)], measured(2.0, 1.0))
    assert chosen.precision == "fp32"
    assert not any(rung.passed for rung in rungs)


def test_a_single_precision_was_asked_for() -> None:
    _, rungs = choose_rung([candidate("fp32")], measured(1.0))
    assert rungs[0].reason == "the only one tried"


def test_a_candidate_without_checks_has_not_passed() -> None:
    empty = replace(candidate("fp32"), checks=())
    assert not empty.passed
    _, rungs = choose_rung([empty], measured(1.0))
    assert rungs[0].reason == "no checks"
