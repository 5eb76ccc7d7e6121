"""Rows as the cells of a table, and as a figure in SVG."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from alula.bench.rows import BenchRow, RatioRow

HEADINGS: tuple[str, ...] = (
    "shape",
    "engine",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "items/s",
    "load ms",
    "peak MB",
    "runs",
    "accuracy",
)


def table(
    rows: Sequence[BenchRow], ratios: Sequence[RatioRow] = ()
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings and rows, each with its speed against the baseline where there is one; "-" is not measured."""
    speed = {(row.shape, row.engine): row for row in ratios}
    headings, lines = HEADINGS, [_cells(row) for row in rows]
    if ratios:
        headings = (*HEADINGS[:2], f"x {ratios[0].baseline}", *HEADINGS[2:])
        for row, cells in zip(rows, lines, strict=True):
            cells.insert(2, _speed(speed.get((row.shape, row.label))))
    return headings, [tuple(cells) for cells in lines]


def _cells(row: BenchRow) -> list[str]:
    peak = None if row.peak_host_bytes is None else row.peak_host_bytes / 1e6
    accuracy = "-" if row.metric is None or row.worst is None else f"{row.metric} {row.worst:.6g}"
    return [
        row.shape,
        row.label,
        _number(row.p50_ms, 2),
        _number(row.p90_ms, 2),
        _number(row.p99_ms, 2),
        _number(row.items_per_s, 1),
        _number(row.load_ms, 0),
        _number(peak, 0),
        str(row.runs),
        accuracy,
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _speed(row: RatioRow | None) -> str:
    """A baseline is once as fast as itself; an interval follows where there are rounds enough for one."""
    if row is None:
        return "1"
    if row.ratio.low is None or row.ratio.high is None:
        return f"{row.ratio.median:.2f}"
    return f"{row.ratio.median:.2f} ({row.ratio.low:.2f}-{row.ratio.high:.2f})"


# Okabe and Ito's colours, which people who see few colours can tell apart; by engine, so that a figure with fewer
# engines keeps them. A precision below fp32 is drawn lighter.
COLOURS = {"torch": "#999999", "onnxruntime": "#56b4e9", "openvino": "#0072b2", "fake": "#e69f00"}
OTHER = "#009e73"

LEFT, RIGHT, TOP, BAR, GAP, GROUP, BARS = 150, 90, 64, 20, 6, 30, 460
WIDTH = LEFT + BARS + RIGHT

QUOTES = {'"': "&quot;"}


def figure(rows: Sequence[BenchRow], title: str, note: str = "") -> str:
    """Bars of median latency, grouped by shape, as an SVG document; a whisker ends at p90. Shorter is better.

    Each group has a scale of its own, since a batch takes many times as long as a row.
    """
    parts = []
    top = TOP
    for shape in dict.fromkeys(row.shape for row in rows):
        group = [row for row in rows if row.shape == shape]
        longest = max(max(row.p50_ms, row.p90_ms or 0) for row in group)
        parts.append(_text(LEFT, top, f"{shape} tokens", "start", "group"))
        top += 10
        for row in group:
            parts += _bar(row, top, BARS / longest)
            top += BAR + GAP
        top += GROUP
    height = top - GROUP + 34
    style = (
        "text{font:13px system-ui,'DejaVu Sans',sans-serif;fill:#333}"
        ".title{font-size:16px;font-weight:600}.group{font-weight:600}.note{font-size:11px;fill:#777}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, QUOTES)}">',
            f"<style>{style}</style>",
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            _text(20, 30, title, "start", "title"),
            *parts,
            _text(20, height - 12, note, "start", "note"),
            "</svg>\n",
        ]
    )


def _bar(row: BenchRow, top: int, scale: float) -> list[str]:
    """Label, bar, whisker and figure of one row."""
    middle = top + BAR / 2
    width = row.p50_ms * scale
    colour = COLOURS.get(row.engine, OTHER)
    opacity = 1 if row.precision == "fp32" else 0.6
    end = max(width, (row.p90_ms or row.p50_ms) * scale)
    parts = [
        _text(LEFT - 10, middle + 4, row.label, "end"),
        f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR}" rx="2" fill="{colour}" '
        f'fill-opacity="{opacity}"/>',
    ]
    if row.p90_ms is not None:
        parts.append(
            f'<path d="M{LEFT + width:.1f} {middle}H{LEFT + end:.1f}M{LEFT + end:.1f} {middle - 4}v8" '
            'stroke="#555555" fill="none"/>'
        )
    parts.append(_text(LEFT + end + 8, middle + 4, f"{row.p50_ms:.1f} ms", "start"))
    return parts


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'
