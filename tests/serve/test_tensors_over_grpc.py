"""The Open Inference Protocol and the health protocol over gRPC: by Triton's client, unmodified, and by bare bytes."""

from __future__ import annotations

import json
import queue
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import numpy as np
import pytest
import served
import tritonclient.grpc as triton
from served import Running
from tritonclient.grpc import service_pb2 as theirs

from alula.core.errors import MissingExtraError
from alula.serve import ServeOptions, running
from alula.serve.grpc_tensors import MESSAGES
from alula.serve.server import Server

MODEL = "tiny/embeddings"
Error = triton.InferenceServerException


@dataclass(frozen=True, kw_only=True)
class Both:
    """A server that speaks HTTP and gRPC."""

    http: Running
    address: str


@pytest.fixture(scope="module")
def both(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    port = served.free_port()
    arrays = served.make_arrays(tmp_path_factory.mktemp("arrays") / "arrays")
    with served.running(
        [*bundles.values(), arrays], max_client_batch=8, grpc_port=port, max_image_bytes=5_000_000
    ) as http:
        yield Both(http=http, address=f"127.0.0.1:{port}")


@pytest.fixture
def client(both: Both) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(both.address) as found:
        yield found


def given(name: str, values: Any, datatype: str) -> triton.InferInput:
    array = np.array(values, dtype=triton.triton_to_np_dtype(datatype))
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def texts(*each: bytes) -> triton.InferInput:
    return given("text", list(each), "BYTES")


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_those_that_tritons_client_sends(name: str) -> None:
    ours, there = MESSAGES[name].DESCRIPTOR, theirs
    for part in name.split("."):
        there = getattr(there, part)
    expected = there.DESCRIPTOR.fields_by_name
    assert ours.full_name == there.DESCRIPTOR.full_name
    for field in ours.fields:
        other = expected[field.name]
        assert (field.number, field.type, field.is_repeated) == (
            other.number,
            other.type,
            other.is_repeated,
        )
        if field.message_type:
            assert field.message_type.full_name == other.message_type.full_name
        if field.containing_oneof:
            assert field.containing_oneof.name == other.containing_oneof.name


def test_tritons_client_finds_server_and_models_ready(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert client.is_model_ready(MODEL, "1")
    assert client.get_server_metadata().name == "alula"
    told = client.get_model_metadata(MODEL)
    assert [(slot.name, slot.datatype, list(slot.shape)) for slot in (*told.inputs, *told.outputs)] == [
        ("text", "BYTES", [-1]),
        ("input_ids", "INT64", [-1, -1]),
        ("attention_mask", "INT64", [-1, -1]),
        ("embedding", "FP32", [-1, 4]),
    ]
    for ask in (client.is_model_ready, client.get_model_metadata):
        with pytest.raises(Error, match=r"\[StatusCode.NOT_FOUND\] model 'none' is not served"):
            ask("none")


def test_answers_are_those_that_http_gives(client: triton.InferenceServerClient, both: Both) -> None:
    plain = both.http.post("/embed", {"inputs": ["a", "a b"], "normalize": False}).json()
    by_text = client.infer(MODEL, [texts(b"a", b"a b")], request_id="7", compression_algorithm="gzip")
    assert by_text.as_numpy("embedding").tolist() == plain
    assert by_text.get_response().id == "7"
    ids = [given("input_ids", [[2, 4, 3, 0]], "INT64"), given("attention_mask", [[1, 1, 1, 0]], "INT64")]
    found = client.infer(MODEL, ids, outputs=[triton.InferRequestedOutput("embedding")])
    assert found.as_numpy("embedding").tolist() == plain[:1]


def call(both: Both, request: Any, **more: Any) -> Any:
    with grpc.insecure_channel(both.address) as channel:
        method = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=theirs.ModelInferRequest.SerializeToString,
            response_deserializer=theirs.ModelInferResponse.FromString,
        )
        return method.with_call(request, timeout=10, **more)


def typed(**contents: Any) -> Any:
    request = theirs.ModelInferRequest(model_name="tiny/arrays")
    x = request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    x.contents.fp32_contents.extend([1.5, 2])
    k = request.inputs.add(name="k", datatype=contents.pop("datatype", "INT32"), shape=[1])
    for name, values in contents.items():
        getattr(k.contents, name).extend(values)
    return request


def test_values_may_stand_in_the_message_by_their_type(both: Both) -> None:
    answer, done = call(both, typed(int_contents=[3]), metadata=(("x-request-id", "abc"),))
    assert np.frombuffer(answer.raw_output_contents[0], "<f4").tolist() == [4.5, 5.0]
    assert ("x-request-id", "abc") in [tuple(pair) for pair in done.trailing_metadata()]
    text = theirs.ModelInferRequest(model_name=MODEL)
    text.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"a")
    assert np.frombuffer(call(both, text)[0].raw_output_contents[0], "<f4").tolist() == [9, 3, 1, -3]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (typed(int64_contents=[3]), "input 'k' is INT32 with int64_contents; expected int_contents"),
        (typed(), "input 'k' has 0 elements; shape [1] has 1"),
        (
            typed(int64_contents=[3], datatype="INT64"),
            "input 'k' is INT64; expected INT32 or one of fewer bits",
        ),
        (typed(int_contents=[300], datatype="INT8"), "input 'k' holds a number that is no INT8"),
        (typed(datatype="FP16"), "input 'k' is FP16, which comes in raw_input_contents alone"),
        (typed(int_contents=[11]), "input 'k' holds 11; the model takes 'k=int32[batch]:0:9'"),
    ],
)
def test_values_that_are_none_of_the_input_are_refused(both: Both, request_: Any, message: str) -> None:
    with pytest.raises(grpc.RpcError) as error:
        call(both, request_)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.value.details() == message


def test_what_cannot_be_done_is_refused_by_name(client: triton.InferenceServerClient, both: Both) -> None:
    more: dict[str, Any]
    for model, given_, more, message in (
        ("none", texts(b"a"), {}, "NOT_FOUND.*model 'none' is not served"),
        (MODEL, texts(b"a"), {"model_version": "2"}, "NOT_FOUND.*has no version '2'"),
        (MODEL, texts(b"a"), {"priority": 4}, "INVALID_ARGUMENT.*priority is 4, expected 1"),
        (MODEL, texts(*[b"a"] * 9), {}, "RESOURCE_EXHAUSTED.*9 inputs in one request"),
        (MODEL, texts(b"\xff"), {}, "INVALID_ARGUMENT.*is not UTF-8: byte 0 is 0xff"),
        (MODEL, texts(b"broken"), {}, "INTERNAL.*bad kernel"),
        (MODEL, texts(b"nan"), {}, "INTERNAL.*the engine gives NaN for 'embedding'"),
    ):
        with pytest.raises(Error, match=message):
            client.infer(model, [given_], **more)
    uneven = theirs.ModelInferRequest(model_name=MODEL, raw_input_contents=[b"a", b"b"])
    uneven.inputs.add(name="text", datatype="BYTES", shape=[1])
    with pytest.raises(grpc.RpcError, match="1 inputs and 2 raw_input_contents"):
        call(both, uneven)
    assert served.metric(
        both.http,
        "alula_requests_total",
        route="/inference.GRPCInferenceService/ModelInfer",
        status="404",
    )


def test_one_limit_holds_for_messages_as_for_bodies(client: triton.InferenceServerClient, both: Both) -> None:
    # SeldonIO/MLServer#290: a message of more than gRPC's own 4 MiB, within the limit that is set, is no error.
    within = np.zeros((4, 290_000), np.float32)
    with pytest.raises(Error, match=r"INVALID_ARGUMENT.*axis 'wide' is 290000; built for 1\.\.8"):
        client.infer("tiny/arrays", [given("x", within, "FP32"), given("k", [1] * 4, "INT32")])
    beyond = np.zeros((4, 320_000), np.float32)
    with pytest.raises(Error, match="RESOURCE_EXHAUSTED"):
        client.infer("tiny/arrays", [given("x", beyond, "FP32"), given("k", [1] * 4, "INT32")])
    assert client.is_server_ready()
    # huggingface/text-embeddings-inference#267: over HTTP nothing above 2 MB came in, whatever was set.
    body = json.dumps(
        {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]},
                {"name": "k", "datatype": "INT32", "shape": [1], "data": [3]},
            ]
        }
    )
    for size, status in ((4_900_000, 200), (5_000_000, 200), (5_000_001, 413)):
        answer = both.http.client.post("/v2/models/tiny/arrays/infer", content=body.ljust(size))
        assert answer.status_code == status, answer.text


def test_a_stream_answers_each_request_and_an_error_is_that_of_one(
    client: triton.InferenceServerClient,
) -> None:
    found: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: found.put((result, error)))
    for at, text in enumerate((b"a", b"\xff", b"b")):
        client.async_stream_infer(MODEL, [texts(text)], request_id=str(at))
    answers = [found.get(timeout=10) for _ in range(3)]
    client.stop_stream()
    assert answers[0][0].as_numpy("embedding").tolist() == [[9, 3, 1, -3]]
    assert answers[2][0].get_response().id == "2"
    assert "is not UTF-8" in str(answers[1][1])


def test_a_deadline_is_kept_in_the_queue_and_a_cancelled_request_leaves_it(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    gate, port = tmp_path / "gate", served.free_port()
    with (
        served.gated(
            bundles["embeddings"], gate, grpc_port=port, max_waiting_rows=2, max_client_batch=2
        ) as http,
        triton.InferenceServerClient(f"127.0.0.1:{port}") as client,
        ThreadPoolExecutor(1) as pool,
    ):
        slow = pool.submit(http.post, "/embed", {"inputs": "slow"})
        served.wait_until(lambda: served.metric(http, "alula_requests_active") == 1)

        def waiting() -> float:
            return served.metric(http, "alula_queue_size")

        for word in ({"client_timeout": 0.2}, {"timeout": 200_000}):
            began = monotonic()
            with pytest.raises(Error, match="DEADLINE_EXCEEDED"):
                client.infer(MODEL, [texts(b"a", b"b")], **word)
            assert 0.15 < monotonic() - began < 2
            served.wait_until(lambda: waiting() == 0)
        cancelled = client.async_infer(MODEL, [texts(b"a", b"b")], lambda result, error: None)
        served.wait_until(lambda: waiting() == 2)
        with pytest.raises(Error, match=r"RESOURCE_EXHAUSTED.*2 rows with 6 tokens are waiting"):
            client.infer(MODEL, [texts(b"a")])
        cancelled.cancel()
        served.wait_until(lambda: waiting() == 0)
        gate.touch()
        assert slow.result().status_code == 200
        assert served.metric(http, "alula_batch_size_sum", model=MODEL) == 1


def health(address: str, method: str, service: bytes = b"") -> Any:
    """What grpc_health_probe sends, byte by byte."""
    channel = grpc.insecure_channel(address)
    path, request = (
        f"/grpc.health.v1.Health/{method}",
        bytes((10, len(service))) + service if service else b"",
    )
    if method == "Check":
        return channel.unary_unary(path)(request, timeout=10)
    return channel.unary_stream(path)(request, timeout=20)


def test_health_is_told_in_the_words_of_grpc(both: Both) -> None:
    for service in (b"", b"inference.GRPCInferenceService", b"tiny/embeddings"):
        assert health(both.address, "Check", service) == b"\x08\x01"
    with pytest.raises(grpc.RpcError) as error:
        health(both.address, "Check", b"none")
    assert error.value.code() is grpc.StatusCode.NOT_FOUND
    assert next(health(both.address, "Watch", b"none")) == b"\x08\x03"


def test_who_watches_the_health_is_told_of_the_end_and_the_server_ends(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    gate, port = tmp_path / "gate", served.free_port()
    with (
        served.gated(bundles["embeddings"], gate, grpc_port=port) as http,
        triton.InferenceServerClient(f"127.0.0.1:{port}") as client,
        ThreadPoolExecutor(1) as pool,
    ):
        watching = health(f"127.0.0.1:{port}", "Watch")
        assert next(watching) == b"\x08\x01"
        slow = pool.submit(client.infer, MODEL, [texts(b"slow")])
        served.wait_until(lambda: served.metric(http, "alula_requests_active") == 1)
        http.process.terminate()
        assert next(watching) == b"\x08\x02"
        with pytest.raises(Error, match=r"UNAVAILABLE.*the server is stopping"):
            client.infer(MODEL, [texts(b"a")])
        gate.touch()
        assert slow.result().as_numpy("embedding").shape == (1, 4)
        assert list(watching) == []
        assert http.process.wait(timeout=15) == 0
        assert http.process.stderr is not None
        assert http.process.stderr.read() == ""


def test_a_port_that_is_taken_is_said_to_be(bundles: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        said = served.refused([bundles["embeddings"]], grpc_port=port)
    assert f"InputError: cannot listen on 127.0.0.1:{port}; name another port with --grpc-port" in said


def test_without_its_library_grpc_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "alula.serve.grpc_front", raising=False)
    server = Server(ServeOptions(bundles=(Path("none"),), grpc_port=8001), ())
    with pytest.raises(MissingExtraError, match=r"gRPC \(--grpc-port\) needs: pip install 'alula\[grpc\]'"):
        running.grpc_front(server)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata"])
def test_bytes_that_are_no_message_are_an_invalid_argument(method: str, both: Both) -> None:
    with grpc.insecure_channel(both.address) as channel:
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        with pytest.raises(grpc.RpcError, match=f"the bytes are no {method}Request") as raised:
            call(b"\xff\xff\xff", timeout=10)
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_one_of_a_stream_that_is_no_message_costs_itself(both: Both) -> None:
    with grpc.insecure_channel(both.address) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        first, second = call(iter([b"\xff\xff\xff", b"\xff\xff\xff"]), timeout=10)
    for each in (first, second):
        assert (
            "the bytes are no ModelInferRequest"
            in theirs.ModelStreamInferResponse.FromString(each).error_message
        )


def test_a_connection_that_says_nothing_is_closed(both: Both) -> None:
    host, _, port = both.address.partition(":")
    begun = monotonic()
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n")
        while client.recv(4096):
            pass
    assert 4 < monotonic() - begun < 8
