"""What Prometheus is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from alula.batching import Ran
from alula.serve.pulse import Finding
from alula.serve.sequences import Load

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
LOAD_SECONDS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
RATIOS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

_HIT = {True: "hit", False: "miss"}

# A second series for every counter and histogram, which nobody asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """One registry per server, so that two in one process do not meet."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "alula_requests", "Requests answered", ["route", "status"], registry=registry
        )
        self._request_seconds = Histogram(
            "alula_request_duration_seconds",
            "From the request's head to the end of its answer",
            ["model", "route"],
            buckets=SECONDS,
            registry=registry,
        )
        self._degraded = Counter(
            "alula_degraded_requests",
            "Requests answered by something cheaper than the model's own engine",
            ["model", "tier"],
            registry=registry,
        )
        self._degraded_pages = Counter(
            "alula_degraded_pages",
            "Pages read by something cheaper than the model that was asked for",
            ["model", "tier"],
            registry=registry,
        )
        self._rejected = Counter(
            "alula_admission_rejected", "Requests not taken", ["reason"], registry=registry
        )
        self._canaries = Counter(
            "alula_canaries",
            "Small requests through the engines, by what came of them",
            ["model", "finding"],
            registry=registry,
        )
        self._canary_seconds = Histogram(
            "alula_canary_duration_seconds",
            "How long they took",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self._queue_seconds = Histogram(
            "alula_queue_duration_seconds",
            "From the admission of a row, or of an answer, to its first batch",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self._batch_rows = Histogram(
            "alula_batch_size", "Rows per batch", ["model"], buckets=ROWS, registry=registry
        )
        self._batch_seconds = Histogram(
            "alula_batch_duration_seconds",
            "A batch's way to the engine and back",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self._padding = Histogram(
            "alula_padding_ratio",
            "Share of a batch's cells that is padding",
            ["model"],
            buckets=RATIOS,
            registry=registry,
        )
        self._tokens = Counter(
            "alula_tokens", "Tokens run, padding not counted", ["model"], registry=registry
        )
        self._cells = Counter(
            "alula_batch_cells",
            "Rows times the length they were padded to; what is not in alula_tokens_total of it is padding",
            ["model"],
            registry=registry,
        )
        self._buckets = Counter(
            "alula_batch_bucket",
            "Batches by the length they were padded to",
            ["model", "length"],
            registry=registry,
        )
        self._shapes = Counter(
            "alula_batch_shape_hits",
            "Batches of a shape that ran before (hit) or not (miss)",
            ["model", "outcome"],
            registry=registry,
        )
        self._profiles = Counter(
            "alula_profile_hits",
            "Batches by the profile they ran in; of engines that have several",
            ["model", "profile"],
            registry=registry,
        )
        self._graphs = Counter(
            "alula_graph_hits",
            "Batches that replayed a recorded graph (hit) or not (miss); of engines that record any",
            ["model", "outcome"],
            registry=registry,
        )
        self._failed = Counter(
            "alula_batches_failed", "Batches without an answer", ["model"], registry=registry
        )
        self._first_token = Histogram(
            "alula_time_to_first_token_seconds",
            "From a request's admission to the first token of an answer",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self._per_token = Histogram(
            "alula_inter_token_latency_seconds",
            "From one token of an answer to the next",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self._load_seconds = Histogram(
            "alula_model_load_duration_seconds",
            "From the wish for a model to its first request, or the error",
            ["outcome"],
            buckets=LOAD_SECONDS,
            registry=registry,
        )
        self._prompt_tokens = Counter(
            "alula_prompt_tokens", "Tokens of admitted prompts", ["model"], registry=registry
        )
        self._generated = Counter("alula_generation_tokens", "Tokens written", ["model"], registry=registry)
        self._cancelled = Counter(
            "alula_answers_cancelled", "Answers that nobody waited for any more", ["model"], registry=registry
        )

    def expect(self, model: str, *, writes: bool) -> None:
        """Begin at nought what counts what seldom happens: a counter that is first seen as 1 has not grown."""
        for reason in ("full", "unavailable", "connections"):
            self._rejected.labels(reason)
        (self._cancelled if writes else self._failed).labels(model)
        for finding in get_args(Finding):
            self._canaries.labels(model, finding)

    def request(self, route: str, status: int, seconds: float, model: str = "") -> None:
        """One request was answered, by a model or without any."""
        self._requests.labels(route, str(status)).inc()
        self._request_seconds.labels(model, route).observe(seconds)
        if status in {429, 503}:
            self._rejected.labels("full" if status == 429 else "unavailable").inc()

    def degraded(self, model: str, tier: str) -> None:
        """One request was answered by something cheaper."""
        self._degraded.labels(model, tier).inc()

    def degraded_page(self, model: str, tier: str) -> None:
        """One page was read by something cheaper."""
        self._degraded_pages.labels(model, tier).inc()

    def connection_refused(self) -> None:
        """One connection was one too many."""
        self._rejected.labels("connections").inc()

    def batch(self, model: str, ran: Ran) -> None:
        """One batch of texts was run."""
        self.images(model, ran)
        if not ran.failed:
            self._tokens.labels(model).inc(ran.tokens)
            self._cells.labels(model).inc(ran.cells)
            self._buckets.labels(model, str(ran.longest)).inc()

    def images(self, model: str, ran: Ran) -> None:
        """One batch was run, of rows that have no tokens."""
        queued = self._queue_seconds.labels(model)
        for waited in ran.waited:
            queued.observe(waited)
        self._batch_rows.labels(model).observe(ran.rows)
        self._batch_seconds.labels(model).observe(ran.seconds)
        self._shapes.labels(model, _HIT[ran.ran_before]).inc()
        if ran.profile:
            self._profiles.labels(model, ran.profile).inc()
        if ran.replayed is not None:
            self._graphs.labels(model, _HIT[ran.replayed]).inc()
        self._padding.labels(model).observe(1 - ran.tokens / ran.cells)
        if ran.failed:
            self._failed.labels(model).inc()

    def canary(self, model: str, finding: str, seconds: float) -> None:
        """A small request was sent through an engine, and what came of it."""
        self._canaries.labels(model, finding).inc()
        self._canary_seconds.labels(model).observe(seconds)

    def loaded(self, seconds: float, well: bool) -> None:
        """A model was loaded while others were served, or could not be."""
        self._load_seconds.labels("loaded" if well else "failed").observe(seconds)

    def prompts(self, model: str, tokens: int) -> None:
        """Prompts of so many tokens were admitted."""
        self._prompt_tokens.labels(model).inc(tokens)

    def queued(self, model: str, seconds: float) -> None:
        """An answer waited so long before it was let into the running batch."""
        self._queue_seconds.labels(model).observe(seconds)

    def written(self, model: str, tokens: int, seconds: float, *, first: bool) -> None:
        """So many tokens of one answer came so long after those before, or, the first ones, after the admission."""
        self._generated.labels(model).inc(tokens)
        if first:
            self._first_token.labels(model).observe(seconds)
        else:
            self._per_token.labels(model).observe(seconds / tokens)

    def cancelled(self, model: str, answers: int) -> None:
        """So many answers were cancelled."""
        self._cancelled.labels(model).inc(answers)

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(f"alula_{name}", what, registry=self.registry).set_function(value)

    def watch_models(self, name: str, what: str, value: Callable[[], Mapping[str, float]]) -> None:
        """A gauge of each model by its name, read when it is asked for."""
        self.registry.register(_Models(f"alula_{name}", what, value))

    def count(self, name: str, what: str, value: Callable[[], float]) -> None:
        """A counter that is read when it is asked for; its name ends in `_total`."""
        self.registry.register(_Counted(f"alula_{name}", what, value))

    def loads(self, value: Callable[[], Mapping[str, Load]]) -> None:
        """What models that write have to do, by their names, read when it is asked for."""
        self.registry.register(_Loads(value))

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self.registry)


class _Counted(Collector):
    def __init__(self, name: str, what: str, value: Callable[[], float]) -> None:
        self._name = name
        self._what = what
        self._value = value

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self._name, self._what, value=self._value())


class _Models(Collector):
    def __init__(self, name: str, what: str, value: Callable[[], Mapping[str, float]]) -> None:
        self._name = name
        self._what = what
        self._value = value

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauge = GaugeMetricFamily(self._name, self._what, labels=["model"])
        for model, value in self._value().items():
            gauge.add_metric([model], value)
        yield gauge


class _Loads(Collector):
    def __init__(self, value: Callable[[], Mapping[str, Load]]) -> None:
        self._value = value

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        loads = self._value()
        running = GaugeMetricFamily("alula_answers_running", "Answers being written", labels=["model"])
        waiting = GaugeMetricFamily("alula_answers_waiting", "Answers in the line", labels=["model"])
        used = GaugeMetricFamily(
            "alula_kv_cache_usage_ratio",
            "Share of the cache of keys and values that is taken",
            labels=["model"],
        )
        preempted = CounterMetricFamily(
            "alula_answers_preempted", "Times an answer had to go back to the line", labels=["model"]
        )
        for name, load in loads.items():
            running.add_metric([name], load.running)
            waiting.add_metric([name], load.waiting)
            used.add_metric([name], load.blocks / max(load.all_blocks, 1))
            preempted.add_metric([name], load.preempted)
        yield from (running, waiting, used, preempted)
