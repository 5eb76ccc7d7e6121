from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from alula.bench import BenchRow, RatioRow, figure, parse_row, table
from alula.bench.statistics import ratio
from alula.core.errors import ManifestError

TORCH = BenchRow(
    engine="torch",
    precision="fp32",
    shape="1x128",
    runs=30,
    p50_ms=19.3,
    p90_ms=20.1,
    p99_ms=None,
    items_per_s=51.8,
)
FAST = replace(
    TORCH,
    engine="openvino",
    precision="bf16",
    runs=120,
    p50_ms=5.7,
    p90_ms=6.2,
    p99_ms=7.0,
    items_per_s=175.4,
    load_ms=132.0,
    peak_host_bytes=249_000_000,
    metric="cosine",
    worst=0.99981,
)
ROWS = [
    TORCH,
    FAST,
    replace(TORCH, shape="8x128", p50_ms=140.0, p90_ms=150.0),
    replace(FAST, shape="8x128", p50_ms=44.0, p90_ms=44.9),
]
NAMES = {
    *("engine", "precision", "shape", "runs", "p50_ms", "p90_ms", "p99_ms", "items_per_s", "load_ms"),
    *("peak_host_bytes", "peak_device_bytes", "metric", "worst"),
}


def test_a_row_has_the_names_that_documents_carry_and_is_read_back() -> None:
    assert set(FAST.as_json()) == NAMES
    for row in ROWS:
        assert parse_row(json.loads(json.dumps(row.as_json()))) == row


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p50_ms": "fast"}, "p50_ms: is str, expected float"),
        ({"runs": 1.5}, "runs: is float, expected int"),
        ({"worst": []}, "worst: is list, expected float"),
        ({"speed": 1}, "speed: is not a field of a bench row"),
    ],
)
def test_a_malformed_row_is_refused_by_the_name_of_its_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        parse_row({**FAST.as_json(), **change})


def test_a_table_shows_what_was_not_measured() -> None:
    headings, rows = table(ROWS[:2])
    assert " ".join(headings) == "shape engine p50 ms p90 ms p99 ms items/s load ms peak MB runs accuracy"
    assert rows == [
        ("1x128", "torch fp32", "19.30", "20.10", "-", "51.8", "-", "-", "30", "-"),
        ("1x128", "openvino bf16", "5.70", "6.20", "7.00", "175.4", "132", "249", "120", "cosine 0.99981"),
    ]


def test_a_table_shows_how_much_faster_with_its_interval() -> None:
    compared = RatioRow(
        shape="1x128",
        engine=FAST.label,
        baseline=TORCH.label,
        ratio=ratio([18.0, 19.0, 20.0, 19.0, 19.5, 18.5], [6.0] * 6),
    )
    headings, rows = table(ROWS[:2], [compared])
    assert headings[2] == "x torch fp32"
    assert [row[2] for row in rows] == ["1", "3.17 (3.00-3.33)"]
    assert compared.as_json()["verdict"] == "faster"


def test_a_figure_is_well_formed_names_every_row_and_stays_inside_its_frame() -> None:
    root = ET.fromstring(figure(ROWS, 'MiniLM <fast> & "small"', "2 threads"))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"torch fp32", "openvino bf16", "1x128 tokens", "8x128 tokens", "5.7 ms", "2 threads"} <= set(
        texts
    )
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    bars = list(root.iter("{http://www.w3.org/2000/svg}rect"))[1:]
    assert len(bars) == len(ROWS)
    for bar in bars:
        assert float(bar.attrib["x"]) + float(bar.attrib["width"]) < width - 60
        assert float(bar.attrib["y"]) + float(bar.attrib["height"]) < height


def test_bars_of_one_shape_are_in_proportion() -> None:
    root = ET.fromstring(figure(ROWS, "t"))
    bars = [float(b.attrib["width"]) for b in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert bars[1] / bars[0] == pytest.approx(5.7 / 19.3, rel=1e-2)
