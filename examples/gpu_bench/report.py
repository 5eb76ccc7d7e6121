"""Results as short tables in Markdown, and as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from alula.bench.statistics import Ratio
from gpu_bench.cases import BASELINE, CONTENDERS
from gpu_bench.limits import per_pixel_ns, verdicts
from gpu_bench.results import Result, Row, Turns, Way


def document(header: Mapping[str, Any], results: Sequence[Result]) -> str:
    """All that was measured, as JSON."""
    cases = [
        {**asdict(result), "verdicts": [asdict(each) for each in verdicts(result)]} for result in results
    ]
    return json.dumps({**header, "cases": cases}, indent=1) + "\n"


def page(header: Mapping[str, Any], results: Sequence[Result]) -> str:
    """All tables."""
    lines = ["# Measured on a GPU", "", *(f"- {key}: {_plain(value)}" for key, value in header.items()), ""]
    for result in results:
        lines += [f"## {result.name}: {result.what}", "", *section(result), ""]
    return "\n".join(lines)


def section(result: Result) -> list[str]:
    """The tables of one case, who is missing and why, and what held."""
    parts = [_speeds(result), _openings(result), _per_pixel(result) if result.pixels else []]
    parts += [_who(result), _failures(result), [f"- {verdict}" for verdict in verdicts(result)]]
    lines: list[str] = []
    for part in parts:
        lines += ["", *part] if lines and part else part
    return lines


def _speeds(result: Result) -> list[str]:
    headings = (
        *("shape", "contender", "host ms", f"x {BASELINE}", "items/s", "in flight items/s"),
        *("device ms", f"x {BASELINE}", "layers ms", "TFLOP/s", "relative error", "largest error"),
    )
    rows = []
    for shape in result.shapes:
        for name, row in result.rows.get(shape, {}).items():
            if row.turns or row.accuracy:
                rows.append([shape, name, *_cells(result, shape, name, row)])
    return table(headings, rows)


def _cells(result: Result, shape: str, name: str, row: Row) -> list[str]:
    def rate(way: Way) -> str:
        found = result.items_per_s(shape, name, way)
        return "" if found is None else f"{found:.0f}"

    fastest = row.turns.get("layers") or row.turns.get("device")
    operations = result.operations.get(shape)
    done = "" if fastest is None or not operations else f"{operations / fastest.median_ms / 1e9:.1f}"
    return [
        _ms(row.turns.get("host")),
        _times(result.times(shape, name, BASELINE, "host"), name),
        rate("host"),
        rate("flight"),
        _ms(row.turns.get("device")),
        _times(result.times(shape, name, BASELINE, "device"), name),
        _ms(row.turns.get("layers")),
        done,
        "" if row.accuracy is None or name == BASELINE else f"{row.accuracy.relative:.1e}",
        "" if row.accuracy is None or name == BASELINE else f"{row.accuracy.largest:.1e}",
    ]


def _ms(turns: Turns | None) -> str:
    if turns is None:
        return ""
    low, high = turns.ends_ms
    return f"{_three(turns.median_ms)} ({_three(low)}-{_three(high)})"


def _three(number: float) -> str:
    """Three digits that count, as long as there is a fraction."""
    return f"{number:.3f}" if number < 10 else f"{number:.2f}" if number < 100 else f"{number:.0f}"


def _times(ratio: Ratio | None, name: str) -> str:
    if ratio is None or name == BASELINE:
        return "1" if name == BASELINE else ""
    interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.2f}-{ratio.high:.2f})"
    return f"{ratio.median:.2f}{interval}"


def _openings(result: Result) -> list[str]:
    headings = (
        *("contender", "build s", "engine MB", "nodes", "kept fp32", "context ms", "load ms"),
        *("first answer ms", "openings", "device MiB", "calibrated on"),
    )
    rows = []
    for name in CONTENDERS:
        opened, built = result.opened.get(name), result.built.get(name)
        if opened is None and built is None:
            continue
        rows.append(
            [
                name,
                "" if built is None else f"{sum(built.seconds.values()):.0f}",
                "" if built is None else f"{built.engine_bytes / 1e6:.0f}",
                "" if built is None else str(built.nodes),
                "" if built is None else str(built.kept),
                *(["", "", "", "", ""] if opened is None else []),
                *(
                    []
                    if opened is None
                    else [
                        f"{opened.context_ms:.0f}",
                        f"{opened.load_ms:.0f}",
                        f"{opened.first_ms:.0f}",
                        str(opened.openings),
                        f"{opened.memory_bytes / 2**20:.0f}",
                    ]
                ),
                "" if built is None else built.calibrated_on,
            ]
        )
    return table(headings, rows)


def _per_pixel(result: Result) -> list[str]:
    """Time per pixel, and how many operations there are for each: attention grows with the square of the tokens."""
    names = [name for name in CONTENDERS if any(name in rows for rows in result.rows.values())]
    headings = ("shape", "GFLOP a call", "operations a pixel", *(f"{name} ns a pixel" for name in names))
    rows = []
    for shape in result.shapes:
        operations, pixels = result.operations.get(shape), result.pixels[shape]
        found = [per_pixel_ns(result, shape, name) for name in names]
        rows.append(
            [
                shape,
                "" if not operations else f"{operations / 1e9:.0f}",
                "" if not operations else f"{operations / pixels:.0f}",
                *("" if each is None else f"{each:.3f}" for each in found),
            ]
        )
    return table(headings, rows)


def _who(result: Result) -> list[str]:
    """Versions, each with who has it, and how calls of engines ran."""
    alike: dict[str, list[str]] = {}
    for name, facts in result.facts.items():
        told = (
            {key: each for key, each in facts.items() if key != "ways"}
            if isinstance(facts, Mapping)
            else facts
        )
        if told:
            alike.setdefault(_plain(told), []).append(name)
    return [f"- {', '.join(names)}: {told}" for told, names in alike.items()]


def _plain(value: Any) -> str:
    """A value for people; of what has parts, each with its name."""
    if not isinstance(value, Mapping):
        return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return "; ".join(f"{key} {_plain(each)}" for key, each in value.items())


def _failures(result: Result) -> list[str]:
    whole = [f"- {name} did not take part: {reason}" for name, reason in result.failed.items()]
    some = [
        f"- {name} at {shape}: {row.failed}"
        for shape, rows in result.rows.items()
        for name, row in rows.items()
        if row.failed and name not in result.failed
    ]
    return [*whole, *some]


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown, nothing without rows; columns with nothing in them are left out."""
    if not rows:
        return []
    kept = [at for at in range(len(headings)) if any(row[at] for row in rows)]
    lines = [[headings[at] for at in kept], ["---"] * len(kept), *([row[at] for at in kept] for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]
