from __future__ import annotations

from math import inf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from alula.core.errors import InputError
from alula.exposition import Reading, Span, quantile

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\r\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e"))


@given(labels=st.lists(NAMES, min_size=1, max_size=4, unique=True), amount=st.floats(0, 1e12))
def test_what_the_library_writes_is_read(labels: list[str], amount: float) -> None:
    registry = CollectorRegistry()
    counter = Counter("grown", "With \\ and \n", ["what"], registry=registry)
    for label in labels:
        counter.labels(label).inc(amount)
    reading = Reading.parse(generate_latest(registry).decode(), 1.0)
    assert {found["what"]: value for found, value in reading.series("grown_total")} == dict.fromkeys(
        labels, amount
    )
    assert reading.labels("grown_total", "what") == tuple(sorted(labels))


def test_numbers_are_as_prometheus_writes_them() -> None:
    text = '# HELP a b\n# TYPE a gauge\na 1\na{x="1"} +Inf\nb NaN 1395066363000\nc{x="1",} -1.5e-3\n'
    reading = Reading.parse(text, 0.0)
    assert reading.value("a", x="1") == inf
    assert reading.value("a") == inf
    assert isnan(reading.value("b") or 0.0)
    assert reading.value("c") == -0.0015
    assert reading.value("d") is None


@pytest.mark.parametrize("text", ["<html>", "a", "a b", 'a{x="1} 1', "{} 1"])
def test_what_is_no_sample_is_refused_with_the_line(text: str) -> None:
    with pytest.raises(InputError, match="is no sample of Prometheus' text format"):
        Reading.parse(text, 0.0)


def between(before: str, after: str, seconds: float = 2.0) -> Span:
    return Span(before=Reading.parse(before, 0.0), after=Reading.parse(after, seconds))


def test_counters_grow_and_begin_at_nought_where_the_server_was_started_anew() -> None:
    span = between('a{m="x"} 10\na{m="y"} 5\n', 'a{m="x"} 14\na{m="y"} 2\na{m="z"} 1\n')
    assert span.grown("a", m="x") == 4
    assert span.grown("a", m="y") == 2
    assert span.grown("a") == 7
    assert span.rate("a") == 3.5
    assert span.grown("b") == 0


def test_a_histogram_has_the_mean_and_the_quantiles_of_what_it_was_told_in_between() -> None:
    registry = CollectorRegistry()
    told = Histogram("s", "", ["m"], buckets=(1.0, 2.0, 4.0), registry=registry)
    told.labels("x").observe(100)
    before = generate_latest(registry).decode()
    for value in (0.5, 1.5, 1.5, 3.0):
        told.labels("x").observe(value)
    span = between(before, generate_latest(registry).decode())
    assert span.mean("s", m="x") == 6.5 / 4
    assert span.quantile(0.5, "s", m="x") == 1.5
    assert span.quantile(1.0, "s", m="x") == 4.0
    assert span.quantile(0.5, "s", m="none") is None
    assert span.mean("s", m="none") is None


# Worked out by hand from the definition of histogram_quantile.
@pytest.mark.parametrize(
    ("share", "buckets", "expected"),
    [
        (0.5, [(1.0, 0.0), (2.0, 10.0), (inf, 10.0)], 1.5),
        (0.99, [(1.0, 50.0), (2.0, 100.0), (inf, 100.0)], 1.98),
        (0.25, [(1.0, 50.0), (2.0, 100.0), (inf, 100.0)], 0.5),
        (0.9, [(1.0, 5.0), (inf, 10.0)], 1.0),
        (0.0, [(1.0, 5.0), (inf, 10.0)], 0.0),
    ],
)
def test_quantiles_are_those_of_prometheus(
    share: float, buckets: list[tuple[float, float]], expected: float
) -> None:
    assert quantile(share, buckets) == pytest.approx(expected)


def test_of_nothing_there_is_no_quantile() -> None:
    assert isnan(quantile(0.5, []))
    assert isnan(quantile(0.5, [(1.0, 0.0), (inf, 0.0)]))
