"""The report, or a comparison of two, as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from alula.fusion import picture, text
from alula.fusion.compare import Comparison, facts, kinds
from alula.fusion.report import counts
from alula.fusion.values import Layer, Report

_SLOWEST = 12

_STYLE = """
body{font:15px/1.5 system-ui,'DejaVu Sans',sans-serif;color:#222;background:#fff;max-width:66rem;margin:2rem auto;
padding:0 1.2rem}
h1{font-size:1.5rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:2.2rem 0 .5rem}
p.sub{color:#666;margin:0 0 1.2rem}
svg{display:block;width:100%}svg text{font:13px system-ui,'DejaVu Sans',sans-serif;fill:#222}svg .q{fill:#666}
.tiles{display:flex;flex-wrap:wrap;gap:.8rem;margin:1.2rem 0}
.tile{border:1px solid #dfe3e8;border-radius:8px;padding:.6rem .9rem;flex:1 1 8rem}
.tile b{display:block;font-size:1.45rem;line-height:1.3}.tile span{color:#666;font-size:.85rem}
table{border-collapse:collapse;width:100%;font-size:.87rem;margin:.3rem 0}
th,td{text-align:left;vertical-align:top;padding:.25rem .6rem .25rem 0;border-bottom:1px solid #eef0f3}
th{color:#666;font-weight:600}td.n,th.n{text-align:right;white-space:nowrap}
td.layer,li{overflow-wrap:anywhere}td.layer{max-width:24rem}th{white-space:nowrap}
.legend{margin:.4rem 0;font-size:.85rem}.legend span{margin-right:1rem;white-space:nowrap}
.legend i{display:inline-block;width:.75rem;height:.75rem;border-radius:2px;margin-right:.35rem}
.note{background:#fff7e0;border-left:4px solid #e69f00;padding:.5rem .8rem;margin:.6rem 0}
summary{cursor:pointer;font-weight:600;margin:.6rem 0}ul{margin:.2rem 0;padding-left:1.1rem}
.bar{display:inline-block;height:.6rem;background:#0072b2;border-radius:2px;vertical-align:middle}
"""


def page(report: Report, title: str) -> str:
    """Everything about one engine."""
    colour = picture.colours(report)
    timed = report.total_ms is not None
    operators = _operators(report)
    parts = [
        _tiles(report),
        *(f'<p class="note">{escape(note)}</p>' for note in report.listing.notes),
        _table(("", ""), list(report.about.items())) if report.about else "",
        _section("What became of the nodes", picture.fates(report), _sentence(text.nodes_line(report))),
        _section(
            "Where time goes" if timed else "What runs",
            picture.kinds(report, colour),
            _sentence(text.time_line(report) if timed else "nothing was timed: bars are numbers of layers"),
        ),
        _section(
            "Layers in the order they run",
            picture.strip(report, colour),
            picture.legend(report, colour),
            _sentence(f"as wide as {'the time they take' if timed else 'the number of nodes they do'}"),
        ),
        _section("Attention", _sentence(text.attention_line(report))),
        _section("Precision", _sentence(f"layers that compute: {text.precision_line(report)}")),
    ]
    if timed:
        slowest = sorted(report.layers, key=lambda layer: -(layer.time_ms or 0.0))[:_SLOWEST]
        parts.append(_section("Slowest layers", _layers(report, slowest, operators)))
    every = _layers(report, report.layers, operators)
    parts.append(f"<details><summary>All {len(report.layers)} layers</summary>{every}</details>")
    if report.removed:
        columns, rows = text.removed_table(report)
        parts.append(_section("Nodes that no layer does", _table(columns, rows)))
    made = f"read as: {report.listing.schema}"
    return _document(title, [*parts, f'<p class="sub">{escape(made)}</p>'])


def comparison_page(comparison: Comparison, title: str, names: tuple[str, str]) -> str:
    """What differs between two engines, the first one above the second."""
    both = comparison.both
    colour = picture.colours(*both)
    scale = max((report.total_ms or 0.0 for report in both), default=0.0) or None
    strips = [
        f"<p><b>{escape(name)}</b>{_total(report)}</p>{picture.strip(report, colour, scale)}"
        f"{picture.legend(report, colour)}"
        for name, report in zip(names, both, strict=True)
    ]
    parts = [
        _section("Side by side", _table(("", *names), facts(comparison))),
        _section("Layers in the order they run", *strips),
        *(
            _section(
                f"What became of the nodes: {name}",
                picture.fates(report),
                _sentence(text.nodes_line(report)),
            )
            for name, report in zip(names, both, strict=True)
        ),
        _section("Kinds of layers", _table(*kinds(comparison), figures=True)),
    ]
    if comparison.changes:
        rows = [
            (change.op, str(len(change.nodes)), change.before, change.after, text.short(change.nodes[0]))
            for change in comparison.changes
        ]
        columns = ("operator", "nodes", f"in {names[0]}", f"in {names[1]}", "such as")
        about = f"of {comparison.common} nodes that both graphs have"
        parts.append(
            _section("Nodes that run otherwise", _sentence(about), _table(columns, rows, figures=True))
        )
    return _document(title, parts)


def _tiles(report: Report) -> str:
    found = counts(report)
    attention = report.attention
    tiles = [
        (str(found["graph"]), "nodes in the graph" if report.nodes is not None else "nodes named"),
        (str(len(report.working)), "layers run"),
        (
            attention.verdict if attention.verdict != "none" else "-",
            f"attention, {attention.fused} of {attention.places}" if attention.places else "attention",
        ),
    ]
    if report.nodes is not None:
        tiles.append((str(found["removed"]), "nodes removed"))
    if report.total_ms is not None:
        call = f" of a call of {text.ms(report.listing.call_ms)} ms" if report.listing.call_ms else ""
        tiles.append((f"{text.ms(report.total_ms)} ms", f"in layers{call}"))
    boxes = "".join(
        f'<div class="tile"><b>{escape(number)}</b><span>{escape(what)}</span></div>'
        for number, what in tiles
    )
    return f'<div class="tiles">{boxes}</div>'


def _layers(report: Report, layers: Sequence[Layer], operators: dict[str, str]) -> str:
    """A table of layers; the nodes of each unfold."""
    whole = report.total_ms
    number = {id(layer): at for at, layer in enumerate(report.layers, start=1)}
    most = max((layer.time_ms or 0.0 for layer in report.layers), default=0.0) or 1.0
    head = ["#", "layer", "kind", "precision", "does"] + (["ms", ""] if whole is not None else [])
    rows = []
    for layer in layers:
        cells = [
            f'<td class="n">{number[id(layer)]}</td>',
            f'<td class="layer">{escape(layer.name)}{_kernel(layer)}</td>',
            f"<td>{escape(layer.kind)}</td>",
            f"<td>{escape(text.precision(layer))}</td>",
            f"<td>{_does(layer, operators)}</td>",
        ]
        if whole is not None:
            width = 90 * (layer.time_ms or 0.0) / most
            cells.append(f'<td class="n">{text.ms(layer.time_ms)}</td>')
            cells.append(f'<td><span class="bar" style="width:{width:.0f}px"></span></td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{''.join(rows)}</table>"


def _kernel(layer: Layer) -> str:
    return f'<br><span style="color:#888">{escape(layer.kernel)}</span>' if layer.kernel else ""


def _does(layer: Layer, operators: dict[str, str]) -> str:
    said = escape(text.does(layer, operators))
    if len(layer.nodes) < 2:
        return said
    names = "".join(f"<li>{escape(name)}</li>" for name in layer.nodes)
    return f"<details><summary style='font-weight:400;margin:0'>{said}</summary><ul>{names}</ul></details>"


def _operators(report: Report) -> dict[str, str]:
    return {} if report.nodes is None else {node.name: node.op for node in report.nodes}


def _total(report: Report) -> str:
    return f": {text.ms(report.total_ms)} ms in layers" if report.total_ms is not None else ""


def _section(title: str, *parts: str) -> str:
    return f"<h2>{escape(title)}</h2>{''.join(parts)}"


def _sentence(line: str) -> str:
    return f"<p>{escape(line)}</p>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, figures: bool = False) -> str:
    """With `figures`, columns that hold nothing else are aligned right."""
    aligned = [
        ' class="n"'
        if figures and all(row[at].replace(".", "").isdigit() or not row[at] for row in rows)
        else ""
        for at in range(len(columns))
    ]
    head = _cells("th", columns, aligned) if any(columns) else ""
    return f"<table>{head}{''.join(_cells('td', row, aligned) for row in rows)}</table>"


def _cells(tag: str, cells: Sequence[str], aligned: Sequence[str]) -> str:
    row = "".join(f"<{tag}{how}>{escape(cell)}</{tag}>" for cell, how in zip(cells, aligned, strict=True))
    return f"<tr>{row}</tr>"


def _document(title: str, parts: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )
