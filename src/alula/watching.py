"""A running server as figures: what its models do, how long they take, what they hold. Seen from outside, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from alula.core.errors import EngineError, InputError
from alula.exposition import Reading, Span

ANSWER_S = 5.0
MOST_BYTES = 16 << 20
"""Of a page of metrics; more is no server of ours."""

DURATION = "alula_request_duration_seconds"
QUEUED = "alula_queue_duration_seconds"
BATCHES = "alula_batch_size"
PADDING = "alula_padding_ratio"
FIRST = "alula_time_to_first_token_seconds"
NEXT = "alula_inter_token_latency_seconds"
LOADED = "alula_model_memory_bytes"
WATCHING = ("/metrics", "/health", "/health/live", "/health/ready", "/livez", "/readyz")
"""Paths that watchers ask, and this one too: no work of the server's."""
BY_MODEL = (
    DURATION + "_count",
    BATCHES + "_count",
    FIRST + "_count",
    "alula_queue_size",
    "alula_answers_running",
)


class Unreachable(EngineError):  # noqa: N818 - a state, not a defect
    """No server answers there now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFigures:
    """One model between two readings. Rates are per second, times seconds; None is nothing to tell of.

    `running` and `waiting` are answers that are written and wait, `queued` rows that wait for a batch; `read` and
    `written` are tokens, `cache` the share of the cache of keys and values that is taken.
    """

    name: str
    requests: float
    p50_s: float | None
    p99_s: float | None
    queued: float
    queue_p99_s: float | None
    batch: float | None
    padding: float | None
    read: float
    written: float
    first_p50_s: float | None
    next_p50_s: float | None
    running: float
    waiting: float
    cache: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessFigures:
    """One process: how many cores it kept busy, and the memory that it holds."""

    name: str
    cores: float
    memory_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFigures:
    """One GPU now."""

    name: str
    busy: float
    used_bytes: float
    total_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFigures:
    """A server between two readings, `seconds` apart.

    `failed` are answers with 5xx, `refused` with 4xx but for those `rejected`, which there was no room for, and those
    whose client `left`; `degraded` were answered by something cheaper.
    """

    status: str
    reason: str
    seconds: float
    up_s: float | None
    active: float
    requests: float
    failed: float
    refused: float
    rejected: float
    left: float
    degraded: float
    restarts: float
    p50_s: float | None
    p99_s: float | None
    models: tuple[ModelFigures, ...]
    processes: tuple[ProcessFigures, ...]
    gpus: tuple[GpuFigures, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """A server to be asked; `key` is what it lets callers in by, where it asks for any."""

    url: str
    key: str = ""

    @classmethod
    def at(cls, url: str, key: str = "") -> Watched:
        """By its address, of which host and port are needed: localhost:8000."""
        whole = urlsplit(url if "//" in url else f"http://{url}")
        if whole.scheme not in {"http", "https"} or not whole.hostname:
            raise InputError(f"{url!r} is no address of a server; expected one such as http://localhost:8000")
        return cls(url=f"{whole.scheme}://{whole.netloc}", key=key)

    def read(self, now: float) -> Reading:
        """Its metrics. Raises Unreachable where nobody answers."""
        return Reading.parse(self._get("/metrics").decode("utf-8", "replace"), now)

    def health(self) -> tuple[str, str]:
        """How it is, in a word, and why."""
        try:
            said: Any = json.loads(self._get("/health/ready", well=(200, 503)))
            return str(said["status"]), str(said.get("engine", {}).get("reason", ""))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{self.url}/health/ready gives no health; is alula served there?") from error

    def _get(self, path: str, well: tuple[int, ...] = (200,)) -> bytes:
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            with urlopen(Request(f"{self.url}{path}", headers=headers), timeout=ANSWER_S) as answer:
                return bytes(answer.read(MOST_BYTES))
        except HTTPError as error:
            with error:
                if error.code in well:
                    return error.read(MOST_BYTES)
            hint = "; name a file with a key by --key-file" if error.code in {401, 403} else ""
            raise InputError(f"{self.url}{path} answers {error.code}{hint}") from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(f"no server answers at {self.url}: {reason}") from error


def figures(span: Span, status: str, reason: str, now: float) -> ServerFigures:
    """What happened between two readings; `now` is the time of the day, in seconds."""
    after = span.after
    started = after.value("process_start_time_seconds")
    statuses = {
        status: sum(
            span.rate("alula_requests_total", status=status, route=route)
            for route in after.labels("alula_requests_total", "route")
            if route not in WATCHING
        )
        for status in after.labels("alula_requests_total", "status")
    }
    return ServerFigures(
        status=status,
        reason=reason,
        seconds=span.seconds,
        up_s=None if started is None else max(0.0, now - started),
        active=after.value("alula_requests_active") or 0.0,
        requests=sum(statuses.values()),
        failed=sum(rate for status, rate in statuses.items() if status >= "500" and status != "503"),
        refused=sum(rate for status, rate in statuses.items() if "400" <= status < "499" and status != "429"),
        left=statuses.get("499", 0.0),
        rejected=span.rate("alula_admission_rejected_total"),
        degraded=span.rate("alula_degraded_requests_total"),
        restarts=after.value("alula_engine_restarts_total") or 0.0,
        p50_s=_of_models(span, 0.5),
        p99_s=_of_models(span, 0.99),
        models=tuple(_model(span, name) for name in models_of(after)),
        processes=tuple(_processes(span)),
        gpus=tuple(_gpus(after)),
    )


def models_of(reading: Reading) -> tuple[str, ...]:
    """The models that a server has; of one that does not say which, those that it tells of."""
    if there := reading.labels(LOADED, "model"):
        return there
    return tuple(sorted({name for metric in BY_MODEL for name in reading.labels(metric, "model") if name}))


def _of_models(span: Span, share: float) -> float | None:
    """Of requests that a model answered; who asks for metrics and health is answered at once, and does not count."""
    return _joined(span, models_of(span.after)).quantile(share, DURATION)


def _joined(span: Span, models: tuple[str, ...]) -> Span:
    def kept(reading: Reading) -> Reading:
        name = f"{DURATION}_bucket"
        buckets = {
            labels: value
            for labels, value in reading.samples.get(name, {}).items()
            if dict(labels).get("model") in models
        }
        return Reading(at=reading.at, samples={name: buckets})

    return Span(before=kept(span.before), after=kept(span.after))


def _model(span: Span, name: str) -> ModelFigures:
    after = span.after
    return ModelFigures(
        name=name,
        requests=span.rate(f"{DURATION}_count", model=name),
        p50_s=span.quantile(0.5, DURATION, model=name),
        p99_s=span.quantile(0.99, DURATION, model=name),
        queued=after.value("alula_queue_size", model=name) or 0.0,
        queue_p99_s=span.quantile(0.99, QUEUED, model=name),
        batch=span.mean(BATCHES, model=name),
        padding=_padding(span, name),
        read=span.rate("alula_tokens_total", model=name) + span.rate("alula_prompt_tokens_total", model=name),
        written=span.rate("alula_generation_tokens_total", model=name),
        first_p50_s=span.quantile(0.5, FIRST, model=name),
        next_p50_s=span.quantile(0.5, NEXT, model=name),
        running=after.value("alula_answers_running", model=name) or 0.0,
        waiting=after.value("alula_answers_waiting", model=name) or 0.0,
        cache=after.value("alula_kv_cache_usage_ratio", model=name),
    )


def _padding(span: Span, name: str) -> float | None:
    """Of all cells, where they are counted; of images the mean over batches."""
    cells = span.grown("alula_batch_cells_total", model=name)
    return (
        1 - span.grown("alula_tokens_total", model=name) / cells if cells else span.mean(PADDING, model=name)
    )


def _processes(span: Span) -> Iterator[ProcessFigures]:
    if (memory := span.after.value("process_resident_memory_bytes")) is not None:
        yield ProcessFigures(name="front", cores=span.rate("process_cpu_seconds_total"), memory_bytes=memory)
    for engine in span.after.labels("alula_engine_resident_memory_bytes", "engine"):
        yield ProcessFigures(
            name=f"engine {engine}",
            cores=span.rate("alula_engine_cpu_seconds_total", engine=engine),
            memory_bytes=span.after.value("alula_engine_resident_memory_bytes", engine=engine) or 0.0,
        )


def _gpus(reading: Reading) -> Iterator[GpuFigures]:
    for labels, used in reading.series("alula_gpu_memory_used_bytes"):
        which = {"gpu": labels["gpu"]}
        yield GpuFigures(
            name=f"{labels['gpu']} {labels.get('name', '')}".strip(),
            busy=reading.value("alula_gpu_utilization_ratio", **which) or 0.0,
            used_bytes=used,
            total_bytes=reading.value("alula_gpu_memory_total_bytes", **which) or 0.0,
        )
