"""What the report counts, says and writes, and what two of them differ in."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest
from made import graph, sample

from alula.fusion import (
    Report,
    as_json,
    compare,
    comparison_page,
    facts,
    kinds,
    page,
    removed_table,
    report_of,
    summary,
    table,
    to_json,
)

GRAPH = graph(
    "kept = Dropout(x)",
    "product = MatMul(kept, w)",
    "sum = Add(product, b)",
    "gelu = Gelu(sum)",
    "y = LayerNormalization(gelu, w, b)",
)


def node(name: str, op: str, reads: str, gives: str, **more: Any) -> dict[str, Any]:
    ends = {"inputs": reads.split(), "outputs": gives.split()}
    return {"name": name, "op_type": op, "domain": "", **ends, **more}


def document(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    values = {"x": ["float32", ["batch", 8]], "w": ["float32", [8, 8]], "b": ["float32", [8]]}
    layers = {
        "nodes": list(nodes),
        "values": values,
        "inputs": ["x"],
        "outputs": ["y"],
        "constants": ["w", "b"],
    }
    return {"source": "onnxruntime", "version": "1.32.0", "layers": layers, **more}


FUSED = document(
    node("product", "MatMul", "x w", "product"),
    node("BiasGelu", "BiasGelu", "product b", "gelu"),
    node("InsertedCast", "Cast", "gelu", "half", to="float16"),
    node("y", "LayerNormalization", "half w b", "y"),
    times=[
        {"name": "product", "timeMs": 3.0},
        {"name": "BiasGelu", "timeMs": 0.5},
        {"name": "InsertedCast", "timeMs": 0.25},
        {"name": "y", "timeMs": 0.25, "kernel": "avx512"},
        {"name": "nobody", "timeMs": 9.0},
    ],
    call_ms=4.5,
)
PLAIN = document(
    node("product", "MatMul", "x w", "product"),
    node("sum", "Add", "product b", "sum"),
    node("gelu", "Gelu", "sum", "gelu"),
    node("y", "LayerNormalization", "gelu w b", "y"),
)


@pytest.fixture
def fused() -> Report:
    return report_of(FUSED, GRAPH, {"engine": "onnxruntime 1.32.0"})


@pytest.fixture
def plain() -> Report:
    return report_of(PLAIN, GRAPH, {"engine": "onnxruntime 1.32.0"})


def test_the_summary_answers_what_became_of_the_graph(fused: Report) -> None:
    assert summary(fused) == [
        ("nodes", "5 in the graph: 2 fused with others, 2 alone, 1 removed"),
        ("layers", "4 run: MatMul, BiasGelu, Cast, LayerNormalization; 0 reformats, 1 cast"),
        ("attention", "the graph has none"),
        ("precision", "fp32 2, fp16 1"),
        (
            "time",
            "4.000 ms in layers of a call of 4.500 ms: MatMul 75 %, BiasGelu 12 %, Cast 6.2 %, "
            "LayerNormalization 6.2 %; casts 6.2 %",
        ),
        ("note", "1 of the times are of no layer here"),
    ]


def test_without_times_nothing_is_said_of_time(plain: Report) -> None:
    assert "time" not in dict(summary(plain))
    columns, rows = table(plain)
    assert "ms" not in columns
    assert rows[1] == ("2", "sum", "Add", "fp32", "Add")


def test_the_table_says_what_each_layer_does_and_takes(fused: Report) -> None:
    columns, rows = table(fused)
    assert columns == ("#", "layer", "kind", "precision", "does", "ms", "%")
    assert rows[1] == ("2", "BiasGelu", "BiasGelu", "fp32", "Add + Gelu", "0.500", "12")
    assert rows[2] == (
        "3",
        "InsertedCast",
        "Cast",
        "fp32 to fp16",
        "(cast, put in by the runtime)",
        "0.250",
        "6.2",
    )
    assert removed_table(fused)[1] == [("Dropout", "1", "kept", "does nothing when a model answers")]


def test_json_carries_everything_and_is_json(fused: Report) -> None:
    found = json.loads(json.dumps(to_json(fused)))
    assert found["nodes"] == {
        "graph": 5,
        "fused": 2,
        "in_regions": 0,
        "alone": 2,
        "split": 0,
        "removed": 1,
        "known": True,
    }
    assert found["layers"][1]["nodes"] == ["sum", "gelu"]
    assert found["layers"][1]["time_ms"] == 0.5
    assert found["layers"][3]["kernel"] == "avx512"
    assert found["removed"] == [{"node": "kept", "op": "Dropout", "why": "does nothing when a model answers"}]
    assert (found["total_ms"], found["call_ms"]) == (4.0, 4.5)
    assert found["kinds"][0] == {"kind": "MatMul", "layers": 1, "time_ms": 3.0}


def test_layers_of_one_name_take_their_times_in_order() -> None:
    twice = document(
        node("BiasGelu", "BiasGelu", "x b", "a"),
        node("BiasGelu", "BiasGelu", "a b", "y"),
        times=[{"name": "BiasGelu", "timeMs": 1.0}, {"name": "BiasGelu", "timeMs": 2.0}],
    )
    assert [layer.time_ms for layer in report_of(twice).layers] == [1.0, 2.0]


def test_onnxruntime_names_a_node_by_its_layout_and_a_number_too() -> None:
    first = node("product_nchwc", "Conv", "elsewhere w", "t", domain="com.microsoft.nchwc")
    blocked = document(first, node("y_token_3", "Relu", "elsewhere", "u"))
    layers = report_of(blocked, GRAPH).layers
    assert [(layer.kind, layer.nodes) for layer in layers] == [("nchwc.Conv", ("product",)), ("Relu", ("y",))]


def test_what_trtexec_profiled_are_times_of_one_call() -> None:
    """It writes the sum over all calls as timeMs, and the mean beside it; the first record counts the calls."""
    times = [
        {"count": 20626},
        {"name": "node_linear_myl4_0", "timeMs": 60.7428, "averageMs": 0.00294496, "medianMs": 0.002944},
    ]
    report = report_of({**sample("tensorrt-10-convnet"), "times": times})
    assert [layer.time_ms for layer in report.layers if layer.time_ms] == [0.00294496]


def test_two_engines_differ_in_whom_a_node_runs_with(plain: Report, fused: Report) -> None:
    comparison = compare(plain, fused)
    assert [(change.op, change.before, change.after) for change in comparison.changes] == [
        ("Add", "alone", "with Gelu"),
        ("Gelu", "alone", "with Add"),
    ]
    assert comparison.common == 5
    answers = {row[0]: row[1:] for row in facts(comparison)}
    assert answers["- fused with others"] == ("0", "2")
    assert answers["layers that run"] == ("4", "4")
    assert answers["- casts"] == ("0", "1")
    assert answers["precision"] == ("fp32 4", "fp32 2, fp16 1")
    assert answers["ms in layers"] == ("not timed", "4.000")
    columns, rows = kinds(comparison)
    assert columns == ("kind", "in the first", "in the second", "ms, first", "ms, second")
    assert ("Gelu", "1", "0", "", "") in rows
    assert json.loads(json.dumps(as_json(comparison)))["changes"][0]["nodes"] == ["sum"]


def test_an_engine_does_not_differ_from_itself(fused: Report) -> None:
    comparison = compare(fused, fused)
    assert comparison.changes == ()
    assert all(first == second for _, first, second in facts(comparison))


class Page(HTMLParser):
    """Tags in balance, what they refer to, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "xlink:href"}]
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_holds_the_report_and_needs_nothing_else(fused: Report) -> None:
    html = page(fused, "What runs: <model>")
    read = Page(html)
    assert read.open == []
    assert read.links == []
    assert not {"script", "link", "img", "iframe"} & set(read.tags)
    assert "url(" not in html
    assert "What runs: <model>" in read.text
    assert "<model>" not in html
    for said in ("5 in the graph", "MatMul", "4.000 ms in layers", "Dropout", "Add + Gelu", "fp32 to fp16"):
        assert said in read.text
    assert read.tags.count("svg") == 3


def test_names_cannot_break_the_page() -> None:
    evil = '<script>alert("x")</script>&'
    report = report_of(document(node(evil, evil, "x w", "y")), GRAPH)
    read = Page(page(report, evil))
    assert "script" not in read.tags
    assert read.text.count(evil) > 2


def test_bars_are_as_long_as_the_time_they_stand_for(fused: Report) -> None:
    html = page(fused, "t")
    strip = html.split("Layers in the order they run")[1].split("</svg>")[0]
    widths = [float(part.split('"')[0]) for part in strip.split(' width="')[1:]]
    assert widths == [pytest.approx(wide, abs=0.4) for wide in (750, 125, 62.5, 62.5)]
    # What costs time and does nothing of the model's has a colour of its own.
    assert "#cc79a7" in strip


def test_the_comparison_is_drawn_on_one_scale(fused: Report) -> None:
    half = {**FUSED, "times": [{**time, "timeMs": time["timeMs"] / 2} for time in FUSED["times"]]}
    html = comparison_page(compare(fused, report_of(half, GRAPH)), "t", ("a<b", "b"))
    read = Page(html)
    assert read.open == []
    assert "a<b: 4.000 ms in layers" in read.text
    strips = [part.split("</svg>")[0] for part in html.split('aria-label="layers in the order they run"')[1:]]
    ends = [max(float(x.split('"')[0]) for x in strip.split('x="')[1:]) for strip in strips]
    assert ends[0] == pytest.approx(2 * ends[1], rel=0.01)
