from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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
    return Candidate(precision=precision, graph=graph, engine=engine, checks=(replace(CHECK, worst=worst),))


def rows(**times: float) -> list[Mapping[str, Any]]:
    return [{"precision": precision, "p50_ms": p50, "shape": "1x128"} for precision, p50 in times.items()]


@pytest.mark.parametrize(
    ("fp32", "bf16", "bf16_worst", "taken", "reason"),
    [
        (10.0, 5.0, 0.9995, "bf16", "fastest within the limits"),
        (10.0, 9.9, 0.9995, "fp32", "no gain"),  # faster by noise only
        (10.0, 20.0, 0.9995, "fp32", "no gain"),
        (10.0, 5.0, 0.9, "fp32", "embedding cosine 0.9, limit 0.999"),
        (10.0, 5.0, float("nan"), "fp32", "embedding cosine nan, limit 0.999"),
    ],
)
def test_the_fastest_within_the_limits_is_taken(
    fp32: float, bf16: float, bf16_worst: float, taken: str, reason: str
) -> None:
    chosen, rungs = choose_rung(
        [candidate("fp32"), candidate("bf16", bf16_worst)], rows(fp32=fp32, bf16=bf16)
    )
    assert chosen.precision == taken
    assert [rung.precision for rung in rungs if rung.taken] == [taken]
    assert reason in rungs[1].reason
    assert [rung.p50_ms for rung in rungs] == [fp32, bf16]


def test_where_fp32_fails_a_slower_precision_that_holds_is_taken() -> None:
    chosen, _ = choose_rung([candidate("fp32", 0.5), candidate("bf16")], rows(fp32=1.0, bf16=9.0))
    assert chosen.precision == "bf16"


def test_where_nothing_holds_the_first_is_kept_with_its_failed_checks() -> None:
    chosen, rungs = choose_rung([candidate("fp32", 0.5), candidate("bf16", 0.4)], rows(fp32=2.0, bf16=1.0))
    assert chosen.precision == "fp32"
    assert not any(rung.passed for rung in rungs)


def test_a_candidate_without_checks_has_not_passed() -> None:
    empty = replace(candidate("fp32"), checks=())
    assert not empty.passed
    _, rungs = choose_rung([empty], rows(fp32=1.0))
    assert rungs[0].reason == "no checks"
