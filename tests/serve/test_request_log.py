from __future__ import annotations

import hashlib
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from served import make_reader, metric, picture, running, wait_until

from alula.serve.records import MOST_SPANS, Record, Recording, current


def record(**known: Any) -> Record:
    given = {"id": "a", "method": "POST", "route": "/embed", "path": "/embed", "client": "", "time": 0.0}
    return Record(**{**given, "began": 10.0, **known})


@pytest.mark.parametrize(
    ("status", "failed", "outcome"),
    [
        (200, None, "ok"),
        (307, None, "ok"),
        (400, None, "refused"),
        (413, None, "refused"),
        (408, None, "timeout"),
        (429, None, "overloaded"),
        (499, None, "left"),
        (500, None, "failed"),
        (503, None, "overloaded"),
        (504, None, "timeout"),
        (200, 500, "failed"),
        (200, 504, "timeout"),
        (200, 499, "left"),
    ],
)
def test_an_outcome_is_that_of_the_status_or_of_what_ended_a_stream(
    status: int, failed: int | None, outcome: str
) -> None:
    assert record(status=status, failed=failed).outcome == outcome


def test_what_ran_in_one_batch_counts_once_and_the_wait_is_that_for_the_first() -> None:
    found = record()
    found.ran(11.0, 11.5, 12.0)
    found.ran(11.0, 11.5, 12.0)
    found.ran(11.0, 12.5, 12.75)
    assert (found.queue_s, found.compute_s) == (0.5, 0.75)
    assert [(span.phase, span.start, span.end) for span in found.spans] == [
        ("queue", 11.0, 11.5),
        ("compute", 11.5, 12.0),
        ("compute", 12.5, 12.75),
    ]


def test_spans_are_bounded_and_times_are_not() -> None:
    found = record()
    for at in range(1_000):
        found.ran(0.0, at + 0.5, at + 1.0)
    assert len(found.spans) == MOST_SPANS
    assert found.compute_s == pytest.approx(500)


def test_a_record_is_at_hand_within_its_request_alone() -> None:
    with Recording(record()) as found:
        current().asked("m", 2)
        current().asked("m", 1)
    current().asked("n", 5)
    assert (found.model, found.items) == ("m", 3)


def test_bodies_are_digested_where_somebody_reads_of_it() -> None:
    seen, unseen = record(digests=True), record()
    for each in (seen, unseen):
        each.body(b"abc")
    assert seen.input == hashlib.sha256(b"abc").hexdigest()[:16]
    assert (unseen.input, unseen.body_bytes) == ("", 3)


def by_id(err: str) -> dict[str, dict[str, Any]]:
    """What a server logged, by the ids of the requests."""
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    return {line["request_id"]: line for line in lines}


def test_whatever_a_path_holds_is_one_line(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]], log_format="json") as server:
        server.client.get("/x%22%0Ay", headers={"x-request-id": "abc"})
        line = by_id(server.stop()[2])["abc"]
    assert (line["status"], line["outcome"], line["route"]) == (404, "refused", "other")
    assert line["path"] == '/x"\ny'


def test_a_line_says_what_was_asked_and_how_long_it_took_and_never_what_was_said(
    bundles: dict[str, Path],
) -> None:
    body = {"inputs": ["xyzzy plugh", "a"]}
    with running([bundles["embeddings"]], log_format="json") as server:
        server.post("/embed", body, **{"x-request-id": "good"})
        server.post("/embed", body, **{"x-request-id": "again"})
        server.post("/embed", {"inputs": 3}, **{"x-request-id": "bad", "authorization": "Bearer hush"})
        server.client.get("/health/ready", headers={"x-request-id": "probe"})
        _, _, err = server.stop()
    lines = by_id(err)
    good = lines["good"]
    assert {key: good[key] for key in ("route", "status", "outcome", "model", "items", "tokens")} == {
        "route": "/embed",
        "status": 200,
        "outcome": "ok",
        "model": "tiny/embeddings",
        "items": 2,
        "tokens": 7,
    }
    assert good["bytes"] > len("xyzzy plugh")
    assert 0 <= good["queue_ms"] <= good["queue_ms"] + good["compute_ms"] <= good["ms"]
    assert good["input"] == lines["again"]["input"] != lines["bad"]["input"]
    assert lines["bad"]["outcome"] == "refused"
    assert "model" not in lines["bad"]
    assert "compute_ms" not in lines["probe"]
    assert not any(word in err for word in ("xyzzy", "plugh", "hush"))


def test_lines_as_text_say_the_same(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]], log_format="text") as server:
        server.post("/embed", {"inputs": "a"}, **{"x-request-id": "good"})
        _, _, err = server.stop()
    (line,) = [line for line in err.splitlines() if "request_id=good" in line]
    assert " route=/embed path=/embed status=200 outcome=ok " in line
    assert " model=tiny/embeddings items=1 tokens=3 " in line


def test_answers_that_are_written_have_their_first_token_and_their_tokens(writers: dict[str, Path]) -> None:
    chat = {"messages": [{"role": "user", "content": "abc"}]}
    with running([writers["chat"]], log_format="json") as server:
        server.post("/v1/chat/completions", chat, **{"x-request-id": "whole"})
        server.post("/v1/chat/completions", {**chat, "stream": True, "n": 2}, **{"x-request-id": "stream"})
        assert metric(server, "alula_queue_duration_seconds_count", model="tiny/text-generation") == 3
        _, _, err = server.stop()
    lines = by_id(err)
    for name, answers in (("whole", 1), ("stream", 2)):
        line = lines[name]
        assert (line["outcome"], line["items"]) == ("ok", answers)
        assert line["written"] == lines["whole"]["written"] * answers > 1
        assert 0 < line["first_token_ms"] <= line["ms"]
        assert 0 <= line["queue_ms"] <= line["first_token_ms"]
        assert line["compute_ms"] <= line["ms"]


def test_a_stream_that_is_left_says_so(writers: dict[str, Path]) -> None:
    long = {"messages": [{"role": "user", "content": "abc" * 100}], "stream": True}
    with running([writers["chat"]], log_format="json") as server:
        with server.client.stream(
            "POST", "/v1/chat/completions", json=long, headers={"x-request-id": "left"}
        ) as response:
            next(response.iter_lines())
        wait_until(lambda: metric(server, "alula_requests_active") == 0)
        lines = by_id(server.stop()[2])
    assert (lines["left"]["status"], lines["left"]["outcome"]) == (200, "left")


def test_forms_are_told_apart_by_their_files_alone(tmp_path: Path) -> None:
    reader = make_reader(tmp_path / "reader")
    with running([reader], log_format="json") as server:
        for name, colour in (("one", (255, 0, 0)), ("same", (255, 0, 0)), ("other", (0, 255, 0))):
            server.client.post(
                "/predict", files={"image": picture(colour)}, headers={"x-request-id": name}
            ).raise_for_status()
        lines = by_id(server.stop()[2])
    assert lines["one"]["input"] == lines["same"]["input"] != lines["other"]["input"]
    one = lines["one"]
    assert (one["model"], one["items"], one["pixels"]) == ("tiny/image-classification", 1, 4 * 4)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_every_line_has_the_form_that_was_asked_for(bundles: dict[str, Path], log_format: str) -> None:
    with running([bundles["embeddings"]], log_format=log_format) as server:
        upgrade = {"connection": "upgrade", "upgrade": "websocket"}
        assert server.client.get("/info", headers=upgrade).status_code == 200
        port = urlsplit(server.url).port or 0
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"no request\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 400 ")
        assert server.post("/embed", {"inputs": "bug"}).status_code == 500
        _, _, err = server.stop()
    lines = err.splitlines()
    assert len(lines) == 4  # two requests, and the error as both processes tell it
    begins = '{"time": ' if log_format == "json" else "time="
    assert all(line.startswith(begins) for line in lines)


def test_warnings_and_errors_of_both_processes_are_lines_of_json_too(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]], log_format="json") as server:
        assert server.post("/embed", {"inputs": "bug"}).status_code == 500
        _, _, err = server.stop()
    lines = [json.loads(line) for line in err.splitlines()]
    said = [line for line in lines if line.get("level") == "error"]
    (front,) = [line for line in said if line["logger"] == "alula.serve.errors"]
    (engine,) = [line for line in said if line["logger"] == "alula.serve.engines"]
    assert front["message"].startswith("engine failed")
    assert "KeyError: 'nobody foresaw this'" in engine["error"]
