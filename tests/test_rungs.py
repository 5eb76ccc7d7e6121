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


def test_what_is_no_surer_than_the_one_taken_says_so() -> None:
    """A third that measures as a little faster is left, and is no loss beside the first."""
    two, ratios = measured(10.0, 4.0), []
    for precision, median in (("bf16", 2.5), ("int8-weights", 2.6)):
        speed = Ratio(median=median, low=median - 0.3, high=median + 0.3, rounds=15)
        ratios.append(RatioRow(shape="1x128", engine=f"fake {precision}", baseline="fake fp32", ratio=speed))
    rows = (*two.rows, replace(two.rows[1], precision="int8-weights", p50_ms=3.85))
    tried = [candidate("fp32"), candidate("bf16"), candidate("int8-weights")]
    chosen, rungs = choose_rung(tried, Measured(rows=rows, ratios=tuple(ratios)))
    assert chosen.precision == "bf16"
    assert rungs[2].reason == "not surely faster than bf16: 2.60 (2.30-2.90) times as fast as fp32"


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


def writes(precision: str, diverges: float, limit: float, agrees: float = 1.0) -> Candidate:
    said = replace(CHECK, output="logits", reference="pytorch")
    checks = (
        replace(said, metric="kl_divergence", worst=diverges, limit=limit, higher_is_better=False),
        replace(said, metric="next_token_agreement", worst=agrees, limit=0.99),
    )
    return replace(candidate(precision), checks=checks)


def faster(*precisions: str) -> Measured:
    """Each twice as fast as the one before."""
    base = measured(8.0)
    rows = tuple(
        replace(base.rows[0], precision=name, p50_ms=8.0 / 2**at) for at, name in enumerate(precisions)
    )
    ratios = tuple(
        RatioRow(
            shape="1x128",
            engine=f"fake {name}",
            baseline="fake fp32",
            ratio=Ratio(median=2.0**at, low=2.0**at - 0.1, high=2.0**at + 0.1, rounds=15),
        )
        for at, name in enumerate(precisions)
        if at
    )
    return Measured(rows=rows, ratios=ratios)


@pytest.mark.parametrize(
    ("eight", "four", "taken"),
    [
        ((0.014, 1.0), 0.045, "fp32"),  # eight bits lose too much, and four more
        ((0.014, 1.0), 0.002, "int4-weights"),  # four bits are the checkpoint's own
        ((0.004, 0.9), 0.045, "fp32"),
        ((0.004, 1.0), 0.045, "int4-weights"),
    ],
)
def test_four_bits_are_not_taken_where_eight_failed_and_lose_less(
    eight: tuple[float, float], four: float, taken: str
) -> None:
    candidates = [
        writes("fp32", 1e-7, 1e-5),
        writes("int8-weights", eight[0], 0.01, eight[1]),
        writes("int4-weights", four, 0.1),
    ]
    chosen, rungs = choose_rung(candidates, faster("fp32", "int8-weights", "int4-weights"))
    assert chosen.precision == taken
    assert rungs[2].passed
    if taken == "fp32":
        less = "int8-weights failed, and loses less: kl_divergence "
        assert rungs[2].reason == f"{less}{eight[0]:g} beside {four:g}"


def test_what_fp32_is_held_to_says_nothing_of_the_others() -> None:
    candidates = [writes("fp32", 2e-5, 1e-5), writes("int8-weights", 0.005, 0.01)]
    chosen, _ = choose_rung(candidates, faster("fp32", "int8-weights"))
    assert chosen.precision == "int8-weights"
