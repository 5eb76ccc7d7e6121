"""Clients who send what no library sends, and what becomes of the others meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import time
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
import served
import uvicorn
from served import Running, gated, metric, running, wait_until
from test_connections import ASK, EMBED, HALF, HALF_OPENAI, active, connected, served_models, until_closed
from uvicorn.server import ServerState

from alula.serve.connections import Bounds
from alula.serve.grpc_tensors import MESSAGES

BODY = b'{"inputs": "a"}'
UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
LAST = b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
INFER = "/inference.GRPCInferenceService/ModelInfer"


def embed(fields: bytes, body: bytes) -> bytes:
    return b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n" + fields + b"\r\n" + body


def chunks(*pieces: bytes, trailers: bytes = b"") -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in pieces) + b"0\r\n" + trailers + b"\r\n"


def statuses(client: socket.socket) -> list[bytes]:
    """Of all answers until the other side closes."""
    received = b"".join(iter(lambda: client.recv(1 << 20), b""))
    return [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("cut", [0, 1, 8, 15])
def test_who_offers_another_protocol_is_answered_in_this_one(
    server: Running, chunked: bool, cut: int
) -> None:
    """Java's HttpClient offers HTTP/2 with its first request, a POST with its body."""
    framing = CHUNKED if chunked else b"content-length: %d\r\n" % len(BODY)
    body = chunks(BODY[:4], BODY[4:]) if chunked else BODY
    sent = embed(UPGRADE + framing, body)
    with connected(server, sent[: len(sent) - cut]) as client:
        time.sleep(0.05)
        client.sendall(sent[len(sent) - cut :] + ASK.replace(b"host: a\r\n", b"host: a\r\n" + UPGRADE) + LAST)
        assert statuses(client) == [b"200"] * 3


def test_trailers_mean_nothing(server: Running) -> None:
    plain = chunks(BODY, trailers=b"content-encoding: gzip\r\nx-request-timeout-ms: none\r\n")
    packed = chunks(gzip.compress(BODY), trailers=b"content-encoding: identity\r\n")
    with connected(server, embed(CHUNKED, plain)) as client:
        client.sendall(embed(CHUNKED + b"content-encoding: gzip\r\n", packed) + LAST)
        assert statuses(client) == [b"200"] * 3


ENDLESS = {
    "trailers": chunks(BODY)[:-2] + b"a: b\r\n" * 200_000,
    "one trailer": chunks(BODY)[:-2] + b"a: " + b"b" * 1_000_000,
    "what is said of a chunk": b"f;" + b"a" * 1_000_000,
}


@pytest.mark.parametrize("sent", ENDLESS.values(), ids=ENDLESS)
def test_what_stands_beside_a_body_has_an_end(server: Running, sent: bytes) -> None:
    with connected(server) as client, contextlib.suppress(ConnectionError):
        client.sendall(embed(CHUNKED, b""))
        for at in range(0, len(sent), 20_000):
            client.sendall(sent[at : at + 20_000])
            time.sleep(0.002)
        pytest.fail("all of it was read")
    assert server.client.get("/health/ready").status_code == 200


def test_chunks_of_a_byte_are_a_body(server: Running) -> None:
    text = b'{"inputs": "' + b"a " * 50_000 + b'"}'
    with connected(server, embed(CHUNKED, chunks(*(bytes([each]) for each in text))) + LAST) as client:
        assert statuses(client) == [b"200"] * 2


def test_a_coding_that_is_not_undone_is_refused(server: Running) -> None:
    with connected(server, embed(b"transfer-encoding: gzip, chunked\r\n", chunks(BODY))) as client:
        head, body = until_closed(client)
    assert head.startswith(b"http/1.1 400 ")
    assert json.loads(body)["error"] == "transfer-encoding is 'gzip, chunked'; expected chunked"


@pytest.mark.parametrize(
    "each", [ASK, embed(b"content-length: 50000\r\n", BODY + b" " * (50_000 - len(BODY)))]
)
def test_many_requests_in_a_row_are_no_large_head(server: Running, each: bytes) -> None:
    count = 400_000 // len(each)
    with connected(server) as client:
        client.settimeout(20)
        client.sendall(each * count + LAST)
        assert statuses(client) == [b"200"] * (count + 1)


def test_what_is_no_request_behind_others_is_not_answered_before_them(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    body = b'{"inputs": "slow"}'
    with gated(bundles["embeddings"], tmp_path / "gate") as server:
        sent = EMBED % (1, len(body), body)
        with connected(server, sent + ASK + b"what is no request\r\n\r\n") as client:
            assert until_closed(client) == (b"", b"")
        wait_until(lambda: active(server) == "alula_requests_active 0.0")


def test_who_is_idle_takes_nobodys_place(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]], max_connections=4) as server, contextlib.ExitStack() as held:
        idle = [held.enter_context(connected(server)) for _ in range(4)]
        assert all(map(served_models, idle))
        time.sleep(1.2)
        assert served_models(idle[0])
        for _ in idle[1:]:
            assert served_models(held.enter_context(connected(server)))
        assert all(until_closed(each) == (b"", b"") for each in idle[1:])
        assert served_models(idle[0])


@pytest.mark.parametrize("sent", [HALF, HALF_OPENAI])
def test_a_body_that_comes_slowly_takes_nobodys_place(bundles: dict[str, Path], sent: bytes) -> None:
    with running([bundles["embeddings"]], max_connections=4) as server, contextlib.ExitStack() as held:
        slow = [held.enter_context(connected(server, sent)) for _ in range(4)]
        with connected(server, ASK) as soon:
            assert until_closed(soon)[0].startswith(b"http/1.1 503 ")
        for _ in range(22):
            time.sleep(0.1)
            for each in slow:
                each.sendall(b" ")
        for each in slow:
            assert served_models(held.enter_context(connected(server)))
            head, body = until_closed(each)
            assert head.startswith(b"http/1.1 503 ")
            error = json.loads(body)["error"]
            assert "came too slowly" in (error["message"] if sent is HALF_OPENAI else error)
        assert metric(server, "alula_requests_active") == 0


def test_an_idle_connection_has_the_time_that_is_set(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]], keep_alive_s=1) as server, connected(server) as client:
        assert served_models(client)
        began = time.monotonic()
        assert until_closed(client) == (b"", b"")
        assert 0.5 < time.monotonic() - began < 3


@pytest.mark.parametrize("reads", [0, 20_000])
def test_the_end_of_an_answer_that_is_not_taken_keeps_no_connection(reads: int) -> None:
    """What is left is too little to have the writing paused, so nobody was told that it is not taken."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"60000"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"a" * 60_000})

    async def left() -> None:
        bounds = Bounds(most=4, head_s=5, unread_s=0.2, refused=lambda: None)
        config = uvicorn.Config(app, http=bounds.protocol(), lifespan="off", log_config=None, ws="none")
        config.load()
        made, state = cast("Any", bounds.protocol()), ServerState()
        loop = asyncio.get_running_loop()
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        server = await loop.create_server(
            lambda: made(config=config, server_state=state, app_state={}), sock=listening
        )
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.setblocking(False)
            await loop.sock_connect(client, listening.getsockname())
            await loop.sock_sendall(client, ASK)
            await asyncio.sleep(0.1)
            for _ in range(reads // 1_000):
                await loop.sock_recv(client, 1_000)
            assert bounds.count == 1
            await asyncio.sleep(1.0)
            assert bounds.count == 0
        server.close()

    asyncio.run(left())


@pytest.mark.parametrize("number", ["1" + "0" * 400, "-1" + "0" * 400, "1e999", "-1e999", "1e308", "0", "-0"])
def test_no_time_is_beyond_words(server: Running, number: str) -> None:
    found = server.client.post("/embed", content=f'{{"inputs": "a", "timeout": {number}}}')
    assert found.status_code == 400
    assert "expected 0.001 to 3600" in found.json()["error"]


def test_a_body_of_nothing_but_objects_is_refused_before_it_is_read(server: Running) -> None:
    for each in (b"{}", b"[]"):
        found = server.client.post("/embed", content=b'{"inputs": [' + each + (b"," + each) * 500_000 + b"]}")
        assert found.status_code == 413
        assert found.json()["error"] == "the body has more than 500000 objects and lists"
    ids = server.client.post("/v1/embeddings", json={"input": [[9], [9, "a"]]})
    assert ids.json()["error"]["message"] == "input[1] is not a list of token ids"


def test_calls_without_their_message_take_nobodys_place(bundles: dict[str, Path]) -> None:
    port = served.free_port()
    options: dict[str, Any] = {"grpc_port": port, "max_connections": 4, "body_timeout_s": 1.0}
    with (
        running([bundles["embeddings"]], None, **options),
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        ask = channel.stream_unary("/inference.GRPCInferenceService/ServerLive")
        again = channel.stream_unary("/grpc.health.v1.Health/Check")

        def never() -> Any:
            time.sleep(4)
            yield b""

        held = [each.future(never()) for each in (ask, ask, again, again)]
        for each in held:
            assert each.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            assert each.details() == "the message was not there in full within 1 s"
        with pytest.raises(grpc.RpcError) as nothing:
            ask(iter(()))
        assert nothing.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert ask(iter([b""]), timeout=5)


@pytest.mark.parametrize("letter", ["a", "\u2028", "\U0001f99c"])
def test_an_error_with_a_long_name_in_it_is_that_error(bundles: dict[str, Path], letter: str) -> None:
    port = served.free_port()
    message = MESSAGES["ModelInferRequest"](model_name=letter * 20_000).SerializeToString()
    with (
        running([bundles["embeddings"]], grpc_port=port),
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        channel.unary_unary(INFER)(message, timeout=5)
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND
