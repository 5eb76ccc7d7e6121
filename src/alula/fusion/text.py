"""The report in words: a few lines, and a table of layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from alula.fusion.report import by_kind, by_precision, counts, of_role, total
from alula.fusion.values import Layer, Report

Rows = list[tuple[str, ...]]

_NAME = 60
_KINDS = 5
_OPERATORS = 8


def summary(report: Report) -> list[tuple[str, str]]:
    """What became of the nodes, what runs, whether attention is fused, precisions, and time if any was taken."""
    rows = [
        ("nodes", nodes_line(report)),
        ("layers", layers_line(report)),
        ("attention", attention_line(report)),
        ("precision", precision_line(report)),
    ]
    if report.total_ms is not None:
        rows.append(("time", time_line(report)))
    return rows + [("note", note) for note in report.listing.notes]


def nodes_line(report: Report) -> str:
    """Such as "196 in the graph: 130 fused with others, 65 alone, 1 removed"."""
    found = counts(report)
    parts = [
        (found["fused"], "fused with others"),
        (found["in_regions"], "inside regions that the runtime does not look into"),
        (found["alone"], "alone"),
        (found["removed"], "removed"),
    ]
    line = ", ".join(f"{count} {what}" for count, what in parts if count)
    split = f"; {found['split']} run as several layers" if found["split"] else ""
    known = "in the graph" if report.nodes is not None else "named by the runtime (the graph is not at hand)"
    return f"{found['graph']} {known}: {line}{split}"


def layers_line(report: Report) -> str:
    """How many run, of which kinds, and what of them the runtime put in between."""
    kinds = [(kind, count) for kind, count, _ in by_kind(report)]
    line = _most(sorted(kinds, key=lambda row: -row[1]), _KINDS)
    between = []
    for role in ("reformat", "cast"):
        layers = of_role(report, role)
        # Without the graph nobody knows whose they are: runtimes name what they put in as well.
        own = 0 if report.nodes is None else sum(not layer.inserted for layer in layers)
        between.append(_counted(len(layers), role) + (f" ({own} of them the graph's)" if own else ""))
    return f"{len(report.working)} run: {line}; {', '.join(between)}"


def attention_line(report: Report) -> str:
    """The verdict, for how many places, and how it is known."""
    found = report.attention
    if found.verdict == "none":
        return found.evidence
    counted = f", {found.fused} of {found.places}" if found.places else ""
    return f"{found.verdict}{counted}: {found.evidence}"


def precision_line(report: Report) -> str:
    """Layers that compute, by precision."""
    return ", ".join(f"{name} {count}" for name, count in by_precision(report).most_common()) or "unknown"


def time_line(report: Report) -> str:
    """All layers together, the whole call, and who takes most."""
    whole = report.total_ms or 0.0
    call = f" of a call of {ms(report.listing.call_ms)} ms" if report.listing.call_ms else ""
    kinds = [
        f"{kind} {share(time, whole)}" for kind, _, time in by_kind(report)[:_KINDS] if time and whole > 0
    ]
    wasted = [
        f"{what} {share(total(of_role(report, role)), whole)}"
        for role, what in (("reformat", "reformats"), ("cast", "casts"))
        if of_role(report, role)
    ]
    return f"{ms(whole)} ms in layers{call}: {', '.join(kinds)}" + (
        f"; {', '.join(wasted)}" if wasted else ""
    )


def table(report: Report) -> tuple[tuple[str, ...], Rows]:
    """Every layer in the order it runs."""
    operators = {} if report.nodes is None else {node.name: node.op for node in report.nodes}
    whole = report.total_ms
    columns = ("#", "layer", "kind", "precision", "does", *(() if whole is None else ("ms", "%")))
    rows: Rows = []
    for number, layer in enumerate(report.layers, start=1):
        row = (str(number), short(layer.name), layer.kind, precision(layer), does(layer, operators))
        rows.append(row if whole is None else (*row, ms(layer.time_ms), percent(layer.time_ms, whole)))
    return columns, rows


def removed_table(report: Report) -> tuple[tuple[str, ...], Rows]:
    """Every node that no layer does, with the reason; nodes of one operator and reason are joined."""
    joined: dict[tuple[str, str], list[str]] = {}
    for each in report.removed:
        joined.setdefault((each.op, each.why), []).append(each.node)
    rows: Rows = [
        (op, str(len(names)), short(names[0]) + (" ..." if len(names) > 1 else ""), why)
        for (op, why), names in joined.items()
    ]
    return ("operator", "nodes", "such as", "why"), rows


def does(layer: Layer, operators: dict[str, str]) -> str:
    """What of the graph a layer does, by operators: "MatMul + Add + Gelu"; names where the operators are unknown."""
    if not layer.nodes:
        own = {"view": "a view", "upkeep": "upkeep"}.get(layer.role, layer.role)
        return f"({own}, put in by the runtime)"
    if not operators:
        return _most([(short(name), 1) for name in layer.nodes], 4)
    found = [operators[name] for name in layer.nodes]
    if len(found) <= _OPERATORS:
        return " + ".join(found)
    return f"{len(found)} nodes: {_most(Counter(found).most_common(), _OPERATORS)}"


def precision(layer: Layer) -> str:
    """What it computes in; of a cast, from what to what."""
    if layer.role in {"cast", "quantize"} and layer.inputs and layer.outputs:
        return f"{layer.inputs[0].dtype or '?'} to {layer.outputs[0].dtype or '?'}"
    return layer.precision


def short(name: str, width: int = _NAME) -> str:
    """A name cut in its middle, where it is long: both ends tell."""
    return name if len(name) <= width else f"{name[: width // 2 - 2]} .. {name[-(width // 2 - 2) :]}"


def ms(value: float | None) -> str:
    """Milliseconds, with the digits that matter."""
    if value is None:
        return ""
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def share(value: float | None, whole: float) -> str:
    """Such as "78 %"."""
    return f"{percent(value, whole) or '0.0'} %"


def percent(value: float | None, whole: float) -> str:
    """A share in hundredths; whole ones from ten on."""
    if value is None or whole <= 0:
        return ""
    found = 100 * value / whole
    return f"{found:.0f}" if found >= 10 else f"{found:.1f}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _most(counted: Sequence[tuple[str, int]], limit: int) -> str:
    """The first of these, and how many are left."""
    parts: Iterable[str] = (f"{count} {name}" if count > 1 else name for name, count in counted[:limit])
    rest = sum(count for _, count in counted[limit:])
    return ", ".join(parts) + (f", {rest} more" if rest else "")
