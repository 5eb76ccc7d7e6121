"""Who is let in by a running server, over HTTP and gRPC, before anything of a request is read but its head."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import served
import tritonclient.grpc as triton
from served import Running, metric, wait_until

ANN, BOB, EVE = ({"api-key": f"secret-of-{name}"} for name in ("ann", "bob", "eve"))
KEYS = """
ann secret-of-ann
bob secret-of-bob at_once=1 highest=low
eve secret-of-eve per_minute=2
"""
TENSORS = "/v2/models/tiny/embeddings/infer"


@pytest.fixture(scope="module")
def keyed(
    bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Running, str, Path]]:
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "keys").write_text(KEYS)
    port = served.free_port()
    options = {"keys_file": str(folder / "keys"), "grpc_port": port, "log_format": "json"}
    with served.gated(bundles["embeddings"], folder / "gate", **options) as server:
        yield server, f"127.0.0.1:{port}", folder / "gate"


def tensors(**parameters: Any) -> dict[str, Any]:
    return {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}],
        "parameters": parameters,
    }


def code_of(answer: httpx.Response) -> tuple[int, Any]:
    error = answer.json()["error"]
    return answer.status_code, error["code"] if isinstance(error, dict) else error


def test_health_and_metrics_need_no_key_and_everything_else_does(keyed: tuple[Running, str, Path]) -> None:
    server, _, _ = keyed
    for path in (
        "/health",
        "/health/live",
        "/livez",
        "/v2/health/ready",
        "/metrics",
        "/docs",
        "/openapi.json",
    ):
        assert server.client.get(path).status_code == 200, path
    for path in ("/v1/models", "/info", "/v2", "/v2/models/tiny/embeddings", "/nothing"):
        assert server.client.get(path).status_code == 401, path
        assert server.client.get(path, headers=ANN).status_code == (404 if path == "/nothing" else 200), path


def test_without_a_key_nothing_of_a_body_is_read_and_each_protocol_says_so_in_its_own_form(
    keyed: tuple[Running, str, Path],
) -> None:
    server, _, _ = keyed
    plain = server.post("/embed", {"inputs": "a"})
    assert (plain.status_code, plain.json()["error_type"]) == (401, "unauthorized")
    assert plain.headers["www-authenticate"] == "Bearer"
    theirs = server.post("/v1/embeddings", {"input": "a"}, **{"api-key": "wrong-key"})
    assert theirs.json()["error"]["type"] == "invalid_request_error"
    assert code_of(theirs) == (401, "invalid_api_key")
    assert set(server.post(TENSORS, tensors()).json()) == {"error"}
    host = server.url.removeprefix("http://")
    with socket.create_connection(host.rsplit(":", 1), timeout=5) as sock:  # type: ignore[arg-type]
        sock.sendall(f"POST /embed HTTP/1.1\r\nhost: {host}\r\ncontent-length: 1000000\r\n\r\n".encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 401 ")  # though no byte of the body was sent


def test_a_key_that_may_not_what_it_asks_for_is_told_so(keyed: tuple[Running, str, Path]) -> None:
    server, _, _ = keyed
    bearer = {"authorization": "Bearer secret-of-ann"}
    assert server.post("/v1/embeddings", {"input": "a"}, **bearer).status_code == 200
    for body, headers in (({}, {"x-priority": "high"}), ({"priority": "normal"}, {})):
        high = server.post("/v1/embeddings", {"input": "a", **body}, **{**BOB, **headers})
        assert code_of(high) == (403, "priority_not_allowed")
        assert "may not ask for priority" in high.json()["error"]["message"]


def test_a_key_has_its_rate_and_its_requests_at_once(keyed: tuple[Running, str, Path]) -> None:
    server, _, gate = keyed
    assert [server.post("/embed", {"inputs": "a"}, **EVE).status_code for _ in range(2)] == [200, 200]
    late = server.post("/embed", {"inputs": "a"}, **EVE)
    assert (late.status_code, late.json()["error_type"]) == (429, "overloaded")
    assert 25 <= int(late.headers["retry-after"]) <= 30
    gate.unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(server.post, "/embed", {"inputs": "slow"}, **BOB)
        wait_until(lambda: metric(server, "alula_requests_active") == 1)
        busy = server.post("/embed", {"inputs": "a"}, **BOB)
        assert busy.status_code == 429
        assert "1 requests with this key are being answered" in busy.json()["error"]
        gate.touch()
        assert slow.result().status_code == 200
    assert server.post("/embed", {"inputs": "a"}, **BOB).status_code == 200


def test_grpc_asks_for_the_same_keys_and_keeps_its_health_open(keyed: tuple[Running, str, Path]) -> None:
    _, address, _ = keyed
    text = triton.InferInput("text", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"a"], np.object_))

    def infer(client: triton.InferenceServerClient, **more: Any) -> Any:
        return client.infer("tiny/embeddings", [text], **more).as_numpy("embedding")

    with triton.InferenceServerClient(address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        for call in (client.get_server_metadata, lambda: infer(client)):
            with pytest.raises(triton.InferenceServerException, match="no API key") as caught:
                call()
            assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
        assert infer(client, headers=ANN).shape == (1, 4)
        assert infer(client, headers={"authorization": "Bearer secret-of-ann"}).shape == (1, 4)
        assert infer(client, headers=ANN, priority=1).shape == (1, 4)
        with pytest.raises(triton.InferenceServerException, match="may not ask for priority") as caught:
            infer(client, headers={**BOB, "x-priority": "normal"})
        assert caught.value.status() == "StatusCode.PERMISSION_DENIED"
        with pytest.raises(triton.InferenceServerException, match="may not ask for priority"):
            infer(client, headers=BOB, priority=1)
        with pytest.raises(triton.InferenceServerException, match="expected 1 \\(high\\) to 3"):
            infer(client, headers=ANN, priority=9)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/embed", {"inputs": "a"}), ("/v1/embeddings", {"input": "a"}), (TENSORS, tensors())],
)
def test_a_priority_is_named_in_a_header_or_in_the_body(
    keyed: tuple[Running, str, Path], path: str, body: dict[str, Any]
) -> None:
    server, _, _ = keyed
    fine = {"parameters": {"priority": 3}} if path == TENSORS else {"priority": "low"}
    odd = {"parameters": {"priority": 4}} if path == TENSORS else {"priority": "urgent"}
    assert server.post(path, {**body, **fine}, **ANN).status_code == 200
    assert server.post(path, body, **{**ANN, "x-priority": "high"}).status_code == 200
    assert server.post(path, {**body, **odd}, **ANN).status_code == 400
    assert server.post(path, body, **{**ANN, "x-priority": "1"}).status_code == 400


def test_who_is_urgent_goes_first_and_a_full_queue_keeps_room_for_them(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    """The engine's batches hold four rows, so what is asked in this order runs in the other one."""
    gate = tmp_path / "gate"
    options = {"max_waiting_rows": 12, "max_client_batch": 4, "log_format": "json"}
    with (
        served.gated(bundles["embeddings"], gate, **options) as server,
        ThreadPoolExecutor(4) as pool,
    ):
        pool.submit(server.post, "/embed", {"inputs": "slow"})
        wait_until(lambda: metric(server, "alula_requests_active") == 1)

        def ask(priority: str) -> Future[httpx.Response]:
            before = metric(server, "alula_queue_size")
            body = {"inputs": ["a"] * 4, "priority": priority}
            asked = pool.submit(server.post, "/embed", body, **{"x-request-id": f"of-{priority}"})
            wait_until(lambda: metric(server, "alula_queue_size") == before + 4)
            return asked

        waiting = [ask("low")]
        assert server.post("/embed", {"inputs": ["a"] * 4, "priority": "low"}).status_code == 429
        waiting.append(ask("normal"))
        full = server.post("/embed", {"inputs": ["a"] * 4})
        assert (full.status_code, full.headers["retry-after"]) == (429, "1")
        waiting.append(ask("high"))
        gate.touch()
        assert [each.result().status_code for each in waiting] == [200] * 3
        _, _, log = server.stop()
    done = [line["request_id"] for line in map(json.loads, log.splitlines())]
    assert [id for id in done if id.startswith("of-")] == ["of-high", "of-normal", "of-low"]


def test_long_texts_are_refused_before_they_are_tokenised_where_no_room_is_for_them(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    options = {"max_waiting_tokens": 60, "max_client_batch": 1}
    with served.gated(bundles["embeddings"], gate, **options) as server, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(server.post, "/embed", {"inputs": "slow"})]
        wait_until(lambda: metric(server, "alula_requests_active") == 1)
        asked.append(pool.submit(server.post, "/embed", {"inputs": "a " * 40}))
        wait_until(lambda: metric(server, "alula_queue_size") == 1)
        full = server.post("/embed", {"inputs": "hello world " * 10})
        assert (full.status_code, full.json()["error_type"]) == (429, "overloaded")
        assert "1 rows with 42 tokens are waiting" in full.json()["error"]
        short = pool.submit(server.post, "/embed", {"inputs": "a b"})
        gate.touch()
        assert [each.result().status_code for each in (*asked, short)] == [200] * 3


def test_images_are_counted_in_pixels_before_any_is_decoded(tmp_path: Path) -> None:
    reader = served.make_reader(tmp_path / "reader")
    images = [base64.b64encode(served.picture((255, 0, 0))).decode()] * 7
    with served.running([reader], max_image_pixels=100, max_waiting_pixels=100) as server:
        many = server.post("/predict", {"inputs": images})
        assert (many.status_code, many.json()["error"]) == (
            413,
            "images of 112 pixels in one request; the limit is 100",
        )
        assert server.post("/predict", {"inputs": images[:6]}).status_code == 200


def test_no_key_is_in_the_log_and_the_name_behind_it_is_no_secret(bundles: dict[str, Path]) -> None:
    with served.running([bundles["embeddings"]], api_keys="ann secret-of-ann", log_format="json") as server:
        assert server.post("/embed", {"inputs": "a"}, **ANN).status_code == 200
        assert server.post("/embed", {"inputs": "a"}, **BOB).status_code == 401
        assert server.client.get("/metrics").status_code == 200
        _, out, err = server.stop()
    assert "secret-of" not in out + err
    assert '"status": 401' in err
    assert '"caller": "ann"' in err


def test_a_private_server_keeps_its_metrics_too(bundles: dict[str, Path]) -> None:
    with served.running([bundles["embeddings"]], api_keys="secret-of-ann", private=True) as server:
        assert server.client.get("/metrics").status_code == 401
        assert server.client.get("/metrics", headers=ANN).status_code == 200
        assert server.client.get("/health/ready").status_code == 200
