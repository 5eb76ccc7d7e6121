from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from served import free_port, refused, running, wait_until

from alula.serve.records import Record
from alula.serve.tracing import Traces

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = ("traceparent", f"00-{TRACE}-{SPAN}-01")


def record(**known: Any) -> Record:
    given = {"id": "a", "method": "POST", "route": "/embed", "path": "/embed", "client": "1.2.3.4"}
    times = {"time": 1_000.0, "began": 10.0, "ended": 11.0, "status": 200}
    return Record(**{**given, **times, **known})


def spans_of(*records: Record) -> list[Any]:
    kept = InMemorySpanExporter()
    traces = Traces(kept, batched=False)
    for each in records:
        traces.told(each)
    traces.close()
    return list(kept.get_finished_spans())


def test_a_request_is_a_span_with_its_queue_and_its_computing_below() -> None:
    asked = record()
    asked.asked("minilm", 2)
    asked.tokens = 7
    asked.ran(10.1, 10.25, 10.5)
    queue, compute, whole = spans_of(asked)
    assert (whole.name, whole.kind, whole.status.status_code) == (
        "POST /embed",
        SpanKind.SERVER,
        StatusCode.UNSET,
    )
    assert (whole.start_time, whole.end_time) == (1_000 * 10**9, 1_001 * 10**9)
    assert [(each.name, each.parent.span_id) for each in (queue, compute)] == [
        ("queue", whole.context.span_id),
        ("compute", whole.context.span_id),
    ]
    assert queue.end_time == compute.start_time == 1_000_250_000_000
    assert dict(whole.attributes) == {
        "client.address": "1.2.3.4",
        "http.request.method": "POST",
        "http.route": "/embed",
        "url.path": "/embed",
        "http.response.status_code": 200,
        "gen_ai.request.model": "minilm",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.operation.name": "embeddings",
        "alula.request_id": "a",
        "alula.outcome": "ok",
        "alula.items": 2,
    }
    assert (asked.trace_id, asked.span_id) == (
        f"{whole.context.trace_id:032x}",
        f"{whole.context.span_id:016x}",
    )


def test_the_callers_trace_is_gone_on_with() -> None:
    (span,) = spans_of(record(trace=(PARENT,)))
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == SPAN


def test_what_the_caller_does_not_record_is_not_sent() -> None:
    assert spans_of(record(trace=(("traceparent", f"00-{TRACE}-{SPAN}-00"),))) == []


def test_a_parent_that_is_none_begins_a_trace() -> None:
    (span,) = spans_of(record(trace=(("traceparent", "nonsense"),)))
    assert span.parent is None


def test_calls_of_grpc_have_the_words_of_grpc() -> None:
    path = "/inference.GRPCInferenceService/ModelInfer"
    (span,) = spans_of(record(method="GRPC", route=path, path=path, status=429))
    assert span.name == path[1:]
    assert {
        key: span.attributes[key] for key in ("rpc.system", "rpc.service", "rpc.method", "error.type")
    } == {
        "rpc.system": "grpc",
        "rpc.service": "inference.GRPCInferenceService",
        "rpc.method": "ModelInfer",
        "error.type": "overloaded",
    }


def test_a_stream_that_failed_is_an_error_and_probes_are_no_requests() -> None:
    (failed,) = spans_of(record(failed=500), record(route="/metrics"), record(route="/livez"))
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes["error.type"] == "failed"


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """Takes traces as a collector of OpenTelemetry does; gives its URL, and the spans that came."""
    came: list[Any] = []

    class Take(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                name = {each.key: each.value.string_value for each in resource.resource.attributes}
                for scope in resource.scope_spans:
                    came.extend((name["service.name"], span) for span in scope.spans)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Take)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", came
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_sends_its_traces_where_the_environment_says(bundles: dict[str, Path]) -> None:
    with collector() as (url, came):
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_SERVICE_NAME": "mine",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        with running([bundles["embeddings"]], env=env, traces=True) as server:
            server.post("/embed", {"inputs": ["a", "b"]}, **{PARENT[0]: PARENT[1]})
            wait_until(lambda: len(came) == 3)
            server.post("/embed", {"inputs": 3})
            code, _, _ = server.stop()
    assert code == 0
    names = [(service, span.name, f"{span.trace_id.hex()}") for service, span in came]
    assert names[:3] == [("mine", name, TRACE) for name in ("queue", "compute", "POST /embed")]
    assert len(came) == 4, "the last one is sent before the server ends"
    said = {each.key: each.value.string_value for each in came[3][1].attributes}
    assert said["alula.outcome"] == "refused"


def test_a_collector_that_is_not_there_hurts_nobody(bundles: dict[str, Path]) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    with running([bundles["embeddings"]], env=env, traces=True) as server:
        for _ in range(3):
            assert server.post("/embed", {"inputs": "a"}).status_code == 200
        code, _, _ = server.stop()
    assert code == 0


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER is 'zipkin'; expected otlp or console"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'; expected http/protobuf or grpc",
        ),
    ],
)
def test_what_cannot_be_sent_to_is_refused(
    bundles: dict[str, Path], env: dict[str, str], message: str
) -> None:
    assert message in refused([bundles["embeddings"]], env=env, traces=True)


def test_nothing_of_it_is_loaded_where_it_is_off(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]]) as server:
        server.post("/embed", {"inputs": "a"}, **{PARENT[0]: PARENT[1]})
        _, out, _ = server.stop()
    assert "opentelemetry" not in out.split(":")[1].split()


def test_calls_over_grpc_are_traced_and_logged_as_requests_over_http_are(bundles: dict[str, Path]) -> None:
    port = free_port()
    texts = triton.InferInput("text", [2], "BYTES")
    texts.set_data_from_numpy(np.array([b"xyzzy plugh", b"a"], object))
    with collector() as (url, came):
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        options: dict[str, Any] = {"grpc_port": port, "traces": True, "log_format": "json"}
        with running([bundles["embeddings"]], env=env, **options) as server:
            with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
                headers = {PARENT[0]: PARENT[1], "x-request-id": "seen"}
                client.infer("tiny/embeddings", [texts], headers=headers)
            _, _, err = server.stop()
    assert [(span.name, span.trace_id.hex()) for _, span in came] == [
        ("queue", TRACE),
        ("compute", TRACE),
        ("inference.GRPCInferenceService/ModelInfer", TRACE),
    ]
    (line,) = [line for line in map(json.loads, err.splitlines()) if line.get("request_id") == "seen"]
    assert {key: line[key] for key in ("method", "outcome", "model", "items", "tokens", "trace_id")} == {
        "method": "GRPC",
        "outcome": "ok",
        "model": "tiny/embeddings",
        "items": 2,
        "tokens": 7,
        "trace_id": TRACE,
    }
    assert line["bytes"] > 0
    assert len(line["input"]) == 16
    assert "xyzzy" not in err
