"""OpenTelemetry's spans of requests, made of their records once they are answered.

Loaded only where traces are asked for. Where they go, how many are kept and what the service is called is said by
OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME and so on).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry import propagate
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SimpleSpanProcessor,
    SpanExporter,
)
from opentelemetry.trace import (
    SpanKind,
    Status,
    StatusCode,
    format_span_id,
    format_trace_id,
    set_span_in_context,
)

from alula import __version__
from alula.core.errors import InputError
from alula.serve.records import Record

CLOSE_S = 5.0
"""So long the end of the server waits for spans to be sent."""

OPERATIONS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/embed": "embeddings",
}
"""Words of OpenTelemetry's conventions for what models are asked to do."""

UNTRACED = frozenset({"/metrics", "/livez", "/readyz", "/health", "/health/live", "/health/ready"})
"""Routes that machines ask every few seconds."""


class Traces:
    """Sends the span of each request, and those of its parts below it."""

    def __init__(self, exporter: SpanExporter, *, batched: bool = True) -> None:
        service = os.environ.get("OTEL_SERVICE_NAME") or "alula"
        given = Resource.create({SERVICE_NAME: service, "service.version": __version__})
        self._provider = TracerProvider(resource=given, shutdown_on_exit=False)
        processor = BatchSpanProcessor(exporter) if batched else SimpleSpanProcessor(exporter)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("alula", __version__)

    def told(self, record: Record) -> None:
        """Send the spans of a request that was answered, and note their ids in its record."""
        if record.route in UNTRACED:
            return
        parent = propagate.extract(dict(record.trace))
        span = self._tracer.start_span(
            _name(record),
            context=parent,
            kind=SpanKind.SERVER,
            attributes=dict(_attributes(record)),
            start_time=_at(record, record.began),
        )
        known = span.get_span_context()
        record.trace_id, record.span_id = format_trace_id(known.trace_id), format_span_id(known.span_id)
        if record.ending >= 500:
            span.set_status(Status(StatusCode.ERROR, record.outcome))
        below = set_span_in_context(span)
        for part in record.spans:
            started = self._tracer.start_span(part.phase, context=below, start_time=_at(record, part.start))
            started.end(_at(record, part.end))
        span.end(_at(record, record.ended))

    def close(self) -> None:
        """Send what is left, as long as that does not take too long. Safe to call twice."""
        ending = threading.Thread(target=self._provider.shutdown, name="last traces", daemon=True)
        ending.start()
        ending.join(CLOSE_S)


def traces() -> Traces:
    """Traces that go where the environment says: by OTLP, to the console, or nowhere."""
    wanted = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if wanted == "console":
        return Traces(ConsoleSpanExporter())
    if wanted != "otlp":
        raise InputError(f"OTEL_TRACES_EXPORTER is {wanted!r}; expected otlp or console")
    return Traces(_otlp())


def _otlp() -> SpanExporter:
    protocol = (
        os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - one of two
            OTLPSpanExporter,
        )

        return OTLPSpanExporter()
    if protocol != "grpc":
        raise InputError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; expected http/protobuf or grpc")
    try:
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InputError(
            "OTEL_EXPORTER_OTLP_PROTOCOL is grpc, which needs: pip install opentelemetry-exporter-otlp-proto-grpc"
        ) from error
    exporter: SpanExporter = trace_exporter.OTLPSpanExporter()
    return exporter


def _at(record: Record, moment: float) -> int:
    """A moment of the monotonic clock in nanoseconds of the day."""
    return int((record.time + moment - record.began) * 1e9)


def _name(record: Record) -> str:
    """As the conventions have it: the method and the route, of gRPC the service and its method."""
    return record.route.lstrip("/") if record.method == "GRPC" else f"{record.method} {record.route}"


def _attributes(record: Record) -> Iterator[tuple[str, Any]]:
    yield from _protocol(record)
    if record.model:
        yield "gen_ai.request.model", record.model
        yield "gen_ai.usage.input_tokens", record.tokens
        if record.written:
            yield "gen_ai.usage.output_tokens", record.written
    if operation := OPERATIONS.get(record.route):
        yield "gen_ai.operation.name", operation
    if record.ending >= 400:
        yield "error.type", record.outcome
    yield "alula.request_id", record.id
    yield "alula.outcome", record.outcome
    for name in ("items", "pixels", "body_bytes", "input", "degraded", "because"):
        if value := getattr(record, name):
            yield f"alula.{name}", value
    if record.first_s is not None:
        yield "gen_ai.response.time_to_first_chunk", record.first_s


def _protocol(record: Record) -> Iterator[tuple[str, Any]]:
    if record.client:
        yield "client.address", record.client
    if record.method == "GRPC":
        service, _, method = record.route.lstrip("/").rpartition("/")
        yield "rpc.system", "grpc"
        yield "rpc.service", service
        yield "rpc.method", method
        return
    yield "http.request.method", record.method
    yield "http.route", record.route
    yield "url.path", record.path
    yield "http.response.status_code", record.status
