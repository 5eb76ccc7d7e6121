"""Where nodes, layers and time went, drawn as SVG inside the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from alula.fusion import text
from alula.fusion.report import by_kind, counts, kind_of
from alula.fusion.values import Layer, Report

# Okabe and Ito's colours, which people who see few colours can tell apart. What costs time and does nothing of the
# model's has one of its own everywhere.
PALETTE = ("#0072b2", "#009e73", "#e69f00", "#56b4e9", "#8c6bb1", "#b8a100")
COSTS = {"reformat": "#d55e00", "cast": "#cc79a7"}
REST, QUIET = "#8a8f98", "#dfe3e8"
FATES = (
    ("fused", "fused with others", "#0072b2"),
    ("in_regions", "inside regions", "#8c6bb1"),
    ("alone", "alone", "#56b4e9"),
    ("removed", "removed", "#dfe3e8"),
)

WIDTH, HEIGHT, LABEL, BAR, GAP = 1000, 46, 250, 18, 8
LEAST = 0.4


def colours(*reports: Report) -> dict[str, str]:
    """A colour for each kind of layer: those that take most have one of their own."""
    weights: dict[str, float] = {}
    roles: dict[str, str] = {}
    for report in reports:
        roles.update({kind_of(layer): layer.role for layer in report.working})
        sizes = [(kind, (time or 0.0) if report.total_ms else count) for kind, count, time in by_kind(report)]
        whole = sum(size for _, size in sizes) or 1.0
        for kind, size in sizes:
            weights[kind] = max(weights.get(kind, 0.0), size / whole)
    free = iter(PALETTE)
    ordered = sorted(weights, key=lambda kind: -weights[kind])
    return {kind: COSTS.get(roles[kind]) or next(free, REST) for kind in ordered}


def fates(report: Report) -> str:
    """One bar: what became of the graph's nodes."""
    found = counts(report)
    whole = sum(found[key] for key, _, _ in FATES) or 1
    parts, at = [], 0.0
    for key, what, colour in FATES:
        if not found[key]:
            continue
        width = WIDTH * found[key] / whole
        dark = colour in {"#0072b2", "#8c6bb1"}
        parts.append(_rect((at, 0, width, 30), colour, f"{found[key]} nodes {what}"))
        if width > 8 * len(f"{found[key]} {what}"):
            fill = "#fff" if dark else "#222"
            parts.append(f'<text x="{at + 8:.1f}" y="20" style="fill:{fill}">{found[key]} {what}</text>')
        at += width
    return _svg(30, parts, "what became of the nodes")


def kinds(report: Report, colour: Mapping[str, str]) -> str:
    """A bar for each kind of layer: its time, or how many there are where nothing was timed."""
    rows = by_kind(report)
    timed = report.total_ms is not None
    sizes = [(time or 0.0) if timed else float(count) for _, count, time in rows]
    longest, whole = max(sizes, default=0.0) or 1.0, sum(sizes) or 1.0
    parts = []
    for row, ((kind, count, time), size) in enumerate(zip(rows, sizes, strict=True)):
        top = row * (BAR + GAP)
        width = max(LEAST, (WIDTH - LABEL - 190) * size / longest)
        said = f"{text.ms(time or 0.0)} ms, {text.share(time or 0.0, whole)}, " if timed else ""
        label = f"{said}{count} layer{'s' if count > 1 else ''}"
        parts.append(
            f'<text x="{LABEL - 10}" y="{top + 13}" text-anchor="end">{escape(text.short(kind, 34))}</text>'
        )
        parts.append(_rect((LABEL, top, width, BAR), colour.get(kind, REST), f"{kind}: {label}"))
        parts.append(f'<text x="{LABEL + width + 8:.1f}" y="{top + 13}" class="q">{escape(label)}</text>')
    return _svg(max(1, len(rows)) * (BAR + GAP), parts, "kinds of layers")


def strip(report: Report, colour: Mapping[str, str], scale_ms: float | None = None) -> str:
    """All layers from left to right as they run, as wide as the time they take, or the nodes they do.

    With `scale_ms` the whole width is that time, so that two strips can be compared.
    """
    timed = report.total_ms is not None
    sizes = [_size(layer, timed=timed) for layer in report.layers]
    whole = (scale_ms if timed and scale_ms else sum(sizes)) or 1.0
    operators = {} if report.nodes is None else {node.name: node.op for node in report.nodes}
    parts, at = [], 0.0
    for layer, size in zip(report.layers, sizes, strict=True):
        width = WIDTH * size / whole
        if width <= 0:
            continue
        said = f"{text.ms(layer.time_ms)} ms: " if layer.time_ms is not None else ""
        title = f"{said}{layer.name} ({layer.kind}, {text.precision(layer)}): {text.does(layer, operators)}"
        fill = QUIET if layer.role in {"view", "upkeep"} else colour.get(kind_of(layer), REST)
        parts.append(_rect((at, 0, max(width - 0.3, 0.2), HEIGHT), fill, title))
        at += width
    return _svg(HEIGHT, parts, "layers in the order they run")


def legend(report: Report, colour: Mapping[str, str]) -> str:
    """The kinds that have a colour of their own."""
    shown = [kind for kind, _, _ in by_kind(report) if colour.get(kind, REST) != REST]
    items = [f'<span><i style="background:{colour[kind]}"></i>{escape(kind)}</span>' for kind in shown]
    if any(colour.get(kind, REST) == REST for kind, _, _ in by_kind(report)):
        items.append(f'<span><i style="background:{REST}"></i>other kinds</span>')
    if any(layer.role in {"view", "upkeep"} for layer in report.layers):
        items.append(f'<span><i style="background:{QUIET}"></i>views and upkeep</span>')
    return f'<p class="legend">{"".join(items)}</p>'


def _size(layer: Layer, *, timed: bool) -> float:
    if timed:
        return layer.time_ms or 0.0
    return float(max(1, len(layer.nodes)))


def _rect(where: tuple[float, float, float, float], fill: str, title: str) -> str:
    x, y, width, height = where
    return (
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{height}" fill="{fill}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _svg(height: int, parts: Sequence[str], label: str) -> str:
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}" '
        f'preserveAspectRatio="none" style="height:{height}px">{body}</svg>'
        if label.startswith("layers")
        else f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{body}</svg>'
    )
