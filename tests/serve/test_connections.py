"""Clients who are slow, or too many."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from served import Running, gated, metric, running, wait_until

HALF = (
    b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\ncontent-type: application/json\r\n\r\n"
    b'{"inputs": '
)
HALF_OPENAI = HALF.replace(b"/embed", b"/v1/embeddings")
ASK = b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@contextlib.contextmanager
def connected(server: Running, sent: bytes = b"") -> Iterator[socket.socket]:
    to = urlsplit(server.url)
    with socket.create_connection((to.hostname or "", to.port or 0), timeout=10) as client:
        client.sendall(sent)
        yield client


def served_models(client: socket.socket) -> bool:
    """Whether the list of models comes on a connection that stays open."""
    client.sendall(ASK)
    received = b""
    while not received.endswith(b"]}") and (chunk := client.recv(4096)):
        received += chunk
    return received.startswith(b"HTTP/1.1 200 ")


def until_closed(client: socket.socket) -> tuple[bytes, bytes]:
    """Head and body of what comes until the other side closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := client.recv(4096):
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    return head.lower(), body


def active(server: Running) -> str:
    return next(
        line
        for line in server.client.get("/metrics").text.splitlines()
        if line.startswith("alula_requests_active")
    )


@pytest.mark.parametrize("sent", [HALF, HALF_OPENAI])
def test_a_body_that_does_not_come_is_given_up_in_the_shape_of_its_path(
    bundles: dict[str, Path], sent: bytes
) -> None:
    with running([bundles["embeddings"]], body_timeout_s=0.5) as server, connected(server, sent) as client:
        head, body = until_closed(client)
        assert head.startswith(b"http/1.1 408 ")
        assert b"connection: close" in head
        error = json.loads(body)["error"]
        message = error["message"] if sent is HALF_OPENAI else error
        assert message == "the body was not there in full within 0.5 s"


def test_half_a_body_is_no_request_being_answered_and_holds_up_no_stop(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]]) as server, connected(server, HALF) as client:
        time.sleep(0.3)
        assert active(server) == "alula_requests_active 0.0"
        started = time.monotonic()
        code, _, _ = server.stop()
        assert time.monotonic() - started < 8
        assert code == 0
        head, body = until_closed(client)
        assert head.startswith(b"http/1.1 503 ")
        assert json.loads(body) == {"error": "the server is stopping", "error_type": "unhealthy"}


@pytest.mark.parametrize("sent", [b"", b"POST /em"])
def test_a_connection_without_a_request_is_closed(bundles: dict[str, Path], sent: bytes) -> None:
    with running([bundles["embeddings"]], body_timeout_s=0.5) as server:
        with connected(server, sent) as client:
            assert until_closed(client) == (b"", b"")
        with connected(server) as client:
            assert served_models(client)
            time.sleep(0.7)  # idle between two requests, which may last longer
            assert served_models(client)
            client.sendall(b"GET /v1")
            assert until_closed(client) == (b"", b"")


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings", "/v2/models/tiny/embeddings/infer"])
@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 3_000_000_000, 2**32 + 2, 2**63 - 1])
def test_a_body_of_gigabytes_is_refused_by_its_length(server: Running, path: str, size: int) -> None:
    """triton-inference-server/server#5649: above 2 GiB the length became a negative one."""
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n"
    with connected(server, head.encode()) as client:
        found = client.recv(4096)
    assert found.startswith(b"HTTP/1.1 413 ")
    assert server.client.get("/health/ready").status_code == 200


MALFORMED = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS, where none is spoken
    b"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: a\r\nno colon here\r\n\r\n",
    b"POST /embed HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
]


@pytest.mark.parametrize("sent", MALFORMED)
def test_what_is_no_request_is_told_so_in_json(server: Running, sent: bytes) -> None:
    with connected(server, sent) as client:
        head, body = until_closed(client)
    assert head.startswith(b"http/1.1 400 bad request")
    assert b"content-type: application/json" in head
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    message = error["message"] if b"/v1/" in sent else error
    assert message == "what was sent is no HTTP/1.1 request"
    assert server.client.get("/health/ready").status_code == 200


LARGE_HEADS = [
    b"GET /info HTTP/1.1\r\nhost: a\r\nx-a: " + b"a" * 70_000,
    b"GET /info HTTP/1.1\r\nhost: a\r\nx-a: " + b"a" * 70_000 + b"\r\n\r\n",
    b"GET /info?a=" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
]


@pytest.mark.parametrize("sent", LARGE_HEADS, ids=["without an end", "whole", "of its path"])
def test_a_head_that_is_too_large_is_told_so(server: Running, sent: bytes) -> None:
    with connected(server, sent) as client:
        head, body = until_closed(client)
    assert head.startswith(b"http/1.1 431 request header fields too large")
    assert "more than 65536 bytes" in json.loads(body)["error"]


@pytest.mark.parametrize("cut", range(4))
def test_a_large_body_behind_a_head_in_pieces_is_no_large_head(server: Running, cut: int) -> None:
    """The first piece ends within the blank line, or before it."""
    text = b'{"inputs": "' + b"a " * 60_000 + b'"}'
    head = b"POST /embed HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(text)
    with connected(server, head[: len(head) - cut]) as client:
        time.sleep(0.05)
        client.sendall(head[len(head) - cut :] + text)
        answer, _ = until_closed(client)
    assert answer.startswith(b"http/1.1 200 ")


def test_a_connection_too_many_is_told_so_and_room_is_used_again(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]], max_connections=4) as server, contextlib.ExitStack() as held:
        server.get("/health")  # one of the four
        for _ in range(3):
            assert served_models(held.enter_context(connected(server)))
        for sent in (HALF, HALF_OPENAI):
            with connected(server, sent) as client:
                head, body = until_closed(client)
            assert head.startswith(b"http/1.1 503 ")
            assert b"retry-after: 1" in head
            error = json.loads(body)["error"]
            message = error["message"] if sent is HALF_OPENAI else error
            assert message == "the server has 4 connections, which is its limit"
        with connected(server) as silent:
            assert until_closed(silent) == (b"", b"")
        assert 'rejected_total{reason="connections"} 3.0' in server.client.get("/metrics").text
        held.close()

        def room() -> bool:
            with connected(server) as client:
                return served_models(client)

        wait_until(room)


def test_heads_that_do_not_end_take_nobodys_place(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]], max_connections=4) as server, contextlib.ExitStack() as held:
        assert server.post("/embed", {"inputs": "a"}).status_code == 200  # one of the four
        slow = [held.enter_context(connected(server, b"POST /embed HTTP/1.1\r\nhost: a")) for _ in range(3)]
        with connected(server, ASK) as soon:
            assert until_closed(soon)[0].startswith(b"http/1.1 503 ")
        time.sleep(0.3)
        for _ in slow:
            assert served_models(held.enter_context(connected(server)))
        began = time.monotonic()
        assert all(until_closed(each) == (b"", b"") for each in slow)
        assert time.monotonic() - began < 1
        assert server.post("/embed", {"inputs": "a"}).status_code == 200
        assert metric(server, "alula_admission_rejected_total", reason="connections") == 4


@pytest.mark.parametrize("reads", [False, True])
def test_who_takes_nothing_of_an_answer_is_left_and_who_is_slow_is_not(
    bundles: dict[str, Path], reads: bool
) -> None:
    text = json.dumps({"inputs": ["a " * 1_000] * 200}).encode()
    ask = b"POST /tokenize HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(text)
    with running([bundles["embeddings"]], body_timeout_s=0.5, max_client_batch=1_000) as server:
        whole = len(server.client.post("/tokenize", content=text).content)
        assert whole > 10_000_000  # more than the system holds
        with connected(server, ask + text) as client:
            received = len(client.recv(1_000))  # it is being sent
            for _ in range(15):
                time.sleep(0.2)
                received += len(client.recv(200_000)) if reads else 0
            with contextlib.suppress(ConnectionResetError):
                while chunk := client.recv(1 << 20):
                    received += len(chunk)
        assert (received > whole) is reads


def test_a_head_has_a_short_time_of_its_own(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]]) as server, connected(server, b"GET /in") as client:
        began = time.monotonic()
        assert until_closed(client) == (b"", b"")
        assert 4 < time.monotonic() - began < 8


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/v2/health/live"])
def test_health_is_answered_though_every_connection_is_taken(bundles: dict[str, Path], path: str) -> None:
    ask = f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode()
    with running([bundles["embeddings"]], max_connections=4) as server, contextlib.ExitStack() as held:
        for _ in range(4):
            held.enter_context(connected(server, HALF))
        for sent in (ask, ask, ASK):
            with connected(server, sent) as client:
                head, _ = until_closed(client)
            assert head.startswith(b"http/1.1 200 " if sent is ask else b"http/1.1 503 ")
            assert b"connection: close" in head


EMBED = b"POST /embed HTTP/1.%d\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"


def test_who_sends_no_more_is_answered(bundles: dict[str, Path], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    body = b'{"inputs": "slow"}'
    with gated(bundles["embeddings"], gate) as server:
        with connected(server, EMBED % (1, len(body), body)) as client:
            client.shutdown(socket.SHUT_WR)
            time.sleep(0.5)
            gate.touch()
            said, _, answer = b"".join(iter(lambda: client.recv(4096), b"")).rpartition(b"HTTP/1.1 200 ")
        looked = said.count(CONTINUE)
        assert said == CONTINUE * looked
        assert 6 <= looked <= 12  # ever more seldom
        assert b"connection: close" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])
        wait_until(lambda: active(server) == "alula_requests_active 0.0")


@pytest.mark.parametrize("version", [0, 1])
def test_who_leaves_altogether_is_answered_no_longer(
    bundles: dict[str, Path], tmp_path: Path, version: int
) -> None:
    body = b'{"inputs": "slow"}'
    with gated(bundles["embeddings"], tmp_path / "gate") as server:
        with connected(server, EMBED % (version, len(body), body)):
            wait_until(lambda: active(server) == "alula_requests_active 1.0")
        wait_until(lambda: active(server) == "alula_requests_active 0.0", within_s=1)


@pytest.mark.parametrize("hosts", [b"", b"host: a\r\nHost: b\r\n"])
def test_a_request_has_one_host(server: Running, hosts: bytes) -> None:
    with connected(server, b"GET /v1/models HTTP/1.1\r\n" + hosts + b"\r\n") as client:
        head, body = until_closed(client)
    assert head.startswith(b"http/1.1 400 ")
    assert json.loads(body)["error"]["message"].startswith(
        "a request of HTTP/1.1 has one Host header; this one"
    )
    with connected(server, b"GET /v1/models HTTP/1.0\r\n\r\n") as client:
        assert until_closed(client)[0].startswith(b"http/1.1 200 ")


def test_where_files_run_out_the_log_says_so_once(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]], env={"SERVED_OPEN_FILES": "80"}) as server:
        with contextlib.ExitStack() as held:
            for _ in range(150):
                held.enter_context(connected(server, HALF))
            time.sleep(1.5)
        wait_until(lambda: server.client.get("/health").status_code == 200)
        _, _, err = server.stop()
    assert err.count("at most 16 connections, not 1000: the limit of open files is 80") == 1
    assert err.count("no file is left for a new connection") == 1
    assert "Traceback" not in err
    assert len(err.splitlines()) < 10


def test_bodies_that_are_not_there_yet_cannot_fill_the_memory(bundles: dict[str, Path]) -> None:
    limits = {"max_body_bytes": 60_000, "max_image_bytes": 60_000, "max_bodies_bytes": 100_000}
    head = b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-length: 55000\r\n\r\n"
    with running([bundles["embeddings"]], None, **limits) as server:
        with connected(server, head + b'{"inputs": "a", "x": "' + b"x" * 50_000) as slow:
            wait_until(lambda: metric(server, "alula_bodies_bytes") > 50_000)
            large = server.post("/embed", {"inputs": "a " * 25_000})
            assert (large.status_code, large.headers["retry-after"]) == (429, "1")
            assert "are being read or answered" in large.json()["error"]
            assert server.post("/embed", {"inputs": "a"}).status_code == 200
            slow.close()
        wait_until(lambda: metric(server, "alula_bodies_bytes") == 0)
        assert server.post("/embed", {"inputs": "a " * 25_000}).status_code == 200


def test_an_answer_does_not_wait_for_the_clients_acknowledgement(server: Running) -> None:
    """Head and body go out one after the other; a delayed acknowledgement takes 40 ms."""
    with connected(server) as client:
        assert served_models(client)
        took = []
        for _ in range(20):
            began = time.perf_counter()
            assert served_models(client)
            took.append(time.perf_counter() - began)
    assert sorted(took)[len(took) // 2] < 0.02


def test_head_and_body_of_an_answer_are_one_packet(server: Running) -> None:
    with connected(server) as client:
        assert served_models(client)
        for _ in range(5):
            client.sendall(ASK)
            assert client.recv(65_536).endswith(b"]}")
