"""Write deploy/grafana/alula.json: the dashboard, from the rows and panels below."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TO = Path(__file__).parent.parent / "deploy" / "grafana" / "alula.json"
SOURCE = {"type": "prometheus", "uid": "${source}"}
ACROSS, HIGH = 24, 8
"""Columns of Grafana's grid, and the rows of it that a panel takes."""

WHO = 'job=~"$job", instance=~"$instance"'
MODEL = f'{WHO}, model=~"$model"'
RATE = "[$__rate_interval]"
PROBES = 'route!~"/metrics|/health.*|/livez|/readyz"'


@dataclass(frozen=True, kw_only=True)
class Line:
    """One query of a panel, and what its curves are called."""

    expr: str
    legend: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Curves under one title; `unit` is one of Grafana's, `single` shows the last value alone."""

    title: str
    lines: tuple[Line, ...]
    unit: str = "short"
    what: str = ""
    single: bool = False
    stacked: bool = False
    most: float | None = None


def per_second(metric: str, by: str, who: str = WHO) -> str:
    """How fast a counter grows."""
    return f"sum by ({by}) (rate({metric}{{{who}}}{RATE}))"


def quantiles(metric: str, who: str = MODEL, by: str = "model") -> tuple[Line, ...]:
    """The middle and the slow end of a histogram."""
    return tuple(
        Line(
            expr=f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{{{who}}}{RATE})))",
            legend=f"{{{{{by}}}}} p{share * 100:.0f}",
        )
        for share in (0.5, 0.99)
    )


def mean(metric: str) -> str:
    """Of what a histogram was told."""
    return f"{per_second(metric + '_sum', 'model', MODEL)} / {per_second(metric + '_count', 'model', MODEL)}"


def hits(metric: str) -> str:
    """The share of batches that hit."""
    hit = per_second(metric, "model", f'{MODEL}, outcome="hit"')
    return f"{hit} / {per_second(metric, 'model', MODEL)}"


def lines(*pairs: tuple[str, str]) -> tuple[Line, ...]:
    """Queries with their legends."""
    return tuple(Line(expr=expr, legend=legend) for expr, legend in pairs)


ROWS: Sequence[tuple[str, Sequence[Panel]]] = (
    (
        "Now",
        (
            Panel(title="Engine answers", single=True, lines=lines((f"min(alula_engine_up{{{WHO}}})", ""))),
            Panel(
                title="Requests",
                single=True,
                unit="reqps",
                lines=lines((f"sum(rate(alula_requests_total{{{WHO}, {PROBES}}}{RATE}))", "")),
            ),
            Panel(
                title="Failed",
                single=True,
                unit="percentunit",
                what="Answers with 500: the engine failed, or we did.",
                lines=lines(
                    (
                        f'(sum(rate(alula_requests_total{{{WHO}, status="500"}}{RATE})) or vector(0))'
                        f" / sum(rate(alula_requests_total{{{WHO}, {PROBES}}}{RATE}))",
                        "",
                    )
                ),
            ),
            Panel(
                title="Engine restarts in an hour",
                single=True,
                lines=lines((f"sum(increase(alula_engine_restarts_total{{{WHO}}}[1h]))", "")),
            ),
        ),
    ),
    (
        "Requests",
        (
            Panel(
                title="Requests by route",
                unit="reqps",
                stacked=True,
                lines=lines(
                    (per_second("alula_requests_total", "route", f"{WHO}, {PROBES}"), "{{route}}"),
                ),
            ),
            Panel(
                title="Requests by status",
                unit="reqps",
                stacked=True,
                lines=lines(
                    (per_second("alula_requests_total", "status", f"{WHO}, {PROBES}"), "{{status}}"),
                ),
            ),
            Panel(
                title="Latency by model",
                unit="s",
                what="From the head of a request to the end of its answer.",
                lines=quantiles("alula_request_duration_seconds"),
            ),
            Panel(
                title="Not taken",
                unit="reqps",
                what="Requests and connections that there was no room for, and those that came while nothing answered.",
                lines=lines((per_second("alula_admission_rejected_total", "reason"), "{{reason}}")),
            ),
            Panel(
                title="Answered by something cheaper",
                unit="reqps",
                lines=lines(
                    (
                        per_second("alula_degraded_requests_total", "model, tier", MODEL),
                        "{{model}} by {{tier}}",
                    )
                ),
            ),
            Panel(
                title="Canaries",
                what="Small requests through each engine, by what came of them.",
                lines=lines(
                    (per_second("alula_canaries_total", "model, finding", MODEL), "{{model}} {{finding}}")
                ),
            ),
            Panel(
                title="At once",
                lines=lines((f"sum by (instance) (alula_requests_active{{{WHO}}})", "{{instance}}")),
            ),
        ),
    ),
    (
        "Batches",
        (
            Panel(
                title="Rows waiting",
                lines=lines((f"sum by (model) (alula_queue_size{{{MODEL}}})", "{{model}}")),
            ),
            Panel(
                title="Wait for the first batch", unit="s", lines=quantiles("alula_queue_duration_seconds")
            ),
            Panel(title="Rows of a batch", lines=lines((mean("alula_batch_size"), "{{model}}"))),
            Panel(title="A batch's way", unit="s", lines=quantiles("alula_batch_duration_seconds")),
            Panel(
                title="Padding",
                unit="percentunit",
                most=1,
                what="The share of what engines computed that was padding.",
                lines=lines(
                    (
                        f"1 - {per_second('alula_tokens_total', 'model', MODEL)}"
                        f" / {per_second('alula_batch_cells_total', 'model', MODEL)}",
                        "{{model}}",
                    )
                ),
            ),
            Panel(
                title="Shapes that ran before, graphs replayed",
                unit="percentunit",
                most=1,
                lines=lines(
                    (hits("alula_batch_shape_hits_total"), "{{model}} shapes"),
                    (hits("alula_graph_hits_total"), "{{model}} graphs"),
                ),
            ),
            Panel(
                title="Batches by the length they are padded to",
                stacked=True,
                lines=lines((per_second("alula_batch_bucket_total", "length", MODEL), "{{length}}")),
            ),
            Panel(
                title="Batches without an answer",
                lines=lines((per_second("alula_batches_failed_total", "model", MODEL), "{{model}}")),
            ),
            Panel(
                title="Tokens run",
                lines=lines((per_second("alula_tokens_total", "model", MODEL), "{{model}}")),
            ),
        ),
    ),
    (
        "Writing",
        (
            Panel(title="First token", unit="s", lines=quantiles("alula_time_to_first_token_seconds")),
            Panel(
                title="From token to token", unit="s", lines=quantiles("alula_inter_token_latency_seconds")
            ),
            Panel(
                title="Tokens a second",
                lines=lines(
                    (per_second("alula_prompt_tokens_total", "model", MODEL), "{{model}} read"),
                    (per_second("alula_generation_tokens_total", "model", MODEL), "{{model}} written"),
                ),
            ),
            Panel(
                title="Answers",
                lines=lines(
                    (f"sum by (model) (alula_answers_running{{{MODEL}}})", "{{model}} running"),
                    (f"sum by (model) (alula_answers_waiting{{{MODEL}}})", "{{model}} waiting"),
                ),
            ),
            Panel(
                title="Cache taken",
                unit="percentunit",
                most=1,
                lines=lines((f"max by (model) (alula_kv_cache_usage_ratio{{{MODEL}}})", "{{model}}")),
            ),
            Panel(
                title="Left, and sent back to the line",
                lines=lines(
                    (per_second("alula_answers_cancelled_total", "model", MODEL), "{{model}} left"),
                    (per_second("alula_answers_preempted_total", "model", MODEL), "{{model}} sent back"),
                ),
            ),
        ),
    ),
    (
        "Machine",
        (
            Panel(
                title="Cores busy",
                lines=lines(
                    (f"rate(process_cpu_seconds_total{{{WHO}}}{RATE})", "front {{instance}}"),
                    (
                        f"rate(alula_engine_cpu_seconds_total{{{WHO}}}{RATE})",
                        "engine {{engine}} {{instance}}",
                    ),
                ),
            ),
            Panel(
                title="Memory",
                unit="bytes",
                lines=lines(
                    (f"process_resident_memory_bytes{{{WHO}}}", "front {{instance}}"),
                    (f"alula_engine_resident_memory_bytes{{{WHO}}}", "engine {{engine}} {{instance}}"),
                ),
            ),
            Panel(
                title="Open files",
                lines=lines(
                    (f"process_open_fds{{{WHO}}}", "{{instance}}"),
                    (f"process_max_fds{{{WHO}}}", "{{instance}} at most"),
                ),
            ),
            Panel(
                title="Bodies here",
                unit="bytes",
                lines=lines((f"sum by (instance) (alula_bodies_bytes{{{WHO}}})", "{{instance}}")),
            ),
            Panel(
                title="GPUs busy",
                unit="percentunit",
                most=1,
                lines=lines((f"alula_gpu_utilization_ratio{{{WHO}}}", "{{instance}} {{gpu}} {{name}}")),
            ),
            Panel(
                title="GPU memory",
                unit="bytes",
                lines=lines(
                    (f"alula_gpu_memory_used_bytes{{{WHO}}}", "{{instance}} {{gpu}} taken"),
                    (f"alula_gpu_memory_total_bytes{{{WHO}}}", "{{instance}} {{gpu}} there"),
                ),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The whole of it, as Grafana imports it."""
    return {
        "title": "alula",
        "uid": "alula",
        "tags": ["alula"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": list(variables())},
        "panels": list(panels()),
    }


def variables() -> Iterator[dict[str, Any]]:
    """What is picked above the panels."""
    yield {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    for name, query in (
        ("job", "label_values(alula_engine_up, job)"),
        ("instance", 'label_values(alula_engine_up{job=~"$job"}, instance)'),
        ("model", f'label_values({{__name__=~"alula_queue_size|alula_answers_running", {WHO}}}, model)'),
    ):
        yield {
            "name": name,
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def panels() -> Iterator[dict[str, Any]]:
    """Rows and their panels, below one another; two or three panels side by side, single values all in one line."""
    top, number = 0, 0
    for title, row in ROWS:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": ACROSS, "h": 1},
            "panels": [],
        }
        top += 1
        beside = len(row) if row[0].single else 3 if len(row) % 3 == 0 else 2
        high = HIGH // 2 if row[0].single else HIGH
        wide = ACROSS // beside
        for at, panel in enumerate(row):
            number += 1
            place = {"x": at % beside * wide, "y": top + at // beside * high, "w": wide, "h": high}
            yield drawn(panel, number, place)
        top += -(-len(row) // beside) * high


def drawn(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    """One panel as Grafana has it."""
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.stacked:
        defaults["custom"] = {"stacking": {"mode": "normal"}, "fillOpacity": 20}
    return {
        "id": number,
        "type": "stat" if panel.single else "timeseries",
        "title": panel.title,
        "description": panel.what,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": SOURCE,
                "expr": line.expr,
                "legendFormat": line.legend,
            }
            for at, line in enumerate(panel.lines)
        ],
    }


def written() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    TO.write_text(written(), encoding="utf-8")
    print(f"wrote {TO}")
