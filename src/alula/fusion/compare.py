"""What differs between two engines: nodes, layers, precisions, time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alula.fusion import text
from alula.fusion.report import by_kind, by_precision, counts, of_role, to_json, total
from alula.fusion.values import Layer, Report

ALONE = "alone"
GONE = "removed"

_FATES = (
    ("fused", "fused with others"),
    ("in_regions", "inside regions"),
    ("alone", "alone"),
    ("split", "run as several layers"),
    ("removed", "removed"),
)
_BETWEEN = ("reformat", "cast")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Nodes of one operator that run otherwise: with whom they share a layer, in the first engine and in the second."""

    op: str
    before: str
    after: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two reports, and what of the nodes that both graphs have runs otherwise."""

    first: Report
    second: Report
    changes: tuple[Change, ...]
    common: int

    @property
    def both(self) -> tuple[Report, Report]:
        """The two, in order."""
        return self.first, self.second


def compare(first: Report, second: Report) -> Comparison:
    """Compare two engines, which may be of different runtimes and graphs."""
    before, after = _companies(first), _companies(second)
    operators = _operators(first) | _operators(second)
    common = [name for name in before if name in after]
    joined: dict[tuple[str, str, str], list[str]] = {}
    for name in common:
        was, is_now = (_said(companies[name], name, operators) for companies in (before, after))
        if was != is_now:
            joined.setdefault((operators.get(name, ""), was, is_now), []).append(name)
    changes = [
        Change(op=op, before=was, after=is_now, nodes=tuple(names))
        for (op, was, is_now), names in joined.items()
    ]
    changes.sort(key=lambda change: -len(change.nodes))
    return Comparison(first=first, second=second, changes=tuple(changes), common=len(common))


def facts(comparison: Comparison) -> text.Rows:
    """One line per question: the answers of both."""
    both = comparison.both
    names = dict.fromkeys(name for report in both for name in report.about)
    rows: text.Rows = [(name, *(report.about.get(name, "-") for report in both)) for name in names]
    found = [counts(report) for report in both]
    rows.append(("nodes", *(str(each["graph"]) for each in found)))
    for key, what in _FATES:
        if any(each[key] for each in found):
            rows.append((f"- {what}", *(str(each[key]) for each in found)))
    rows.append(("layers that run", *(str(len(report.working)) for report in both)))
    for role in _BETWEEN:
        rows.append((f"- {role}s", *(str(len(of_role(report, role))) for report in both)))
    rows.append(("attention", *(text.attention_line(report) for report in both)))
    rows.append(("precision", *(text.precision_line(report) for report in both)))
    if any(report.total_ms is not None for report in both):
        rows.append(("ms in layers", *(text.ms(report.total_ms) or "not timed" for report in both)))
        for role in _BETWEEN:
            if any(of_role(report, role) for report in both):
                took = (text.ms(total(of_role(report, role))) or "-" for report in both)
                rows.append((f"- in {role}s", *took))
        rows.append(("ms of a call", *(text.ms(report.listing.call_ms) or "-" for report in both)))
    return rows


def kinds(comparison: Comparison) -> tuple[tuple[str, ...], text.Rows]:
    """The kinds of layers, how many each engine runs, and what they take."""
    tables = [{kind: (count, time) for kind, count, time in by_kind(report)} for report in comparison.both]
    timed = any(report.total_ms is not None for report in comparison.both)
    columns = ("kind", "in the first", "in the second") + (("ms, first", "ms, second") if timed else ())
    rows = []
    for kind in dict.fromkeys(kind for table in tables for kind in table):
        found = [table.get(kind, (0, None)) for table in tables]
        row = (kind, *(str(count) for count, _ in found))
        rows.append((*row, *(text.ms(time) for _, time in found)) if timed else row)
    return columns, rows


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Both reports, and the changes."""
    return {
        "first": to_json(comparison.first),
        "second": to_json(comparison.second),
        "nodes_in_both": comparison.common,
        "precisions": [dict(by_precision(report)) for report in comparison.both],
        "changes": [
            {
                "op": change.op,
                "before": change.before,
                "after": change.after,
                "nodes": list(change.nodes),
            }
            for change in comparison.changes
        ],
    }


def _operators(report: Report) -> dict[str, str]:
    return {} if report.nodes is None else {node.name: node.op for node in report.nodes}


def _companies(report: Report) -> dict[str, list[Layer]]:
    """The layers of each node; none of a removed one."""
    found: dict[str, list[Layer]] = {each.node: [] for each in report.removed}
    for layer in report.layers:
        for node in layer.nodes:
            found.setdefault(node, []).append(layer)
    return found


def _said(layers: list[Layer], name: str, operators: Mapping[str, str]) -> str:
    """With whom a node runs, by operators: the same words for the same company in every block of a model."""
    if not layers:
        return GONE
    if any(layer.opaque for layer in layers):
        return "inside a region"
    others = Counter(
        operators.get(other, other) for layer in layers for other in layer.nodes if other != name
    )
    if not others:
        return ALONE if len(layers) == 1 else f"{ALONE}, as {len(layers)} layers"
    parts = (f"{count} {op}" if count > 1 else op for op, count in sorted(others.items()))
    return f"with {', '.join(parts)}"
