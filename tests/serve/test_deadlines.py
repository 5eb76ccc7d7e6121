"""A request is answered in its time or told so, and holds no place after it."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import served

from alula.core.errors import InputError, TooLong
from alula.serve import deadlines
from alula.serve.deadlines import Deadline
from alula.serve.errors import failure_of

TENSORS = "/v2/models/tiny/embeddings/infer"


def tensors(text: str, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}], **more}


def test_time_is_counted_from_when_a_request_was_let_in() -> None:
    deadline = Deadline.after(2.5, now=100.0)
    assert [deadline.left(now) for now in (100.0, 102.0, 102.5, 200.0)] == [2.5, 0.5, 0.0, 0.0]
    assert (deadline.missed().status, str(deadline.missed())) == (504, "no answer within 2.5 s")


def test_the_shortest_time_that_is_asked_for_holds() -> None:
    assert deadlines.allowed(None, None, default=30.0) == 30.0
    assert deadlines.allowed(60.0, None, default=30.0) == 60.0
    assert deadlines.allowed(deadlines.from_header("250"), deadlines.from_field(1), default=30.0) == 0.25


@pytest.mark.parametrize("text", ["", "-1", "0", "1e3", "x", "3600001", "²", "1 0"])
def test_a_header_that_says_no_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="x-request-timeout-ms is"):
        deadlines.from_header(text)


@pytest.mark.parametrize("value", [0, -1, 0.0009, 5e-324, 3601, True, "1", [1], 1e400])
def test_a_field_that_says_no_time_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="timeout is"):
        deadlines.from_field(value)


TWO_LATE = "no answer within 0.15 s; 0 of 2 rows were done"


def test_who_waits_behind_others_is_told_in_time_and_leaves_the_queue(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    """ggml-org/llama.cpp#24496: a request whose time was over kept its place."""
    gate = tmp_path / "gate"
    with served.gated(bundles["embeddings"], gate, timeout_s=20) as server, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(server.post, "/embed", {"inputs": "slow"})
        served.wait_until(lambda: served.metric(server, "alula_requests_active") == 1)
        asked: list[tuple[str, Any, dict[str, str], str]] = [
            ("/embed", {"inputs": ["a", "b"]}, {"x-request-timeout-ms": "150"}, TWO_LATE),
            ("/v1/embeddings", {"input": "a", "timeout": 0.15}, {}, "no answer within 0.15 s"),
            (TENSORS, tensors("a", parameters={"timeout": 150_000}), {}, "no answer within 0.15 s"),
            (TENSORS, tensors("a"), {"x-request-timeout-ms": "100"}, "no answer within 0.1 s"),
        ]
        for path, body, headers, message in asked:
            began = monotonic()
            late = server.post(path, body, **headers)
            assert 0.09 < monotonic() - began < 2
            assert late.status_code == 504
            error = late.json()["error"]
            assert message == (error["message"] if isinstance(error, dict) else error)
            assert served.metric(server, "alula_queue_size") == 0
        gate.touch()
        assert slow.result().status_code == 200
        assert served.metric(server, "alula_batch_size_sum", model="tiny/embeddings") == 1
        in_time = server.post("/embed", {"inputs": "a", "timeout": 10.5})
        assert in_time.status_code == 200


def test_what_takes_longer_than_its_time_is_told_so_as_though_it_had_been_tried() -> None:
    failure = failure_of(TooLong("9 rows take about 3.0 s, and the request has 2.0 s"))
    assert (failure.status, failure.kind, failure.code) == (504, "timeout", "timeout")


def test_a_list_that_was_not_done_in_time_says_how_far_it_came(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    with served.gated(bundles["embeddings"], tmp_path / "gate", max_batch_tokens=8) as server:
        late = server.post("/embed", {"inputs": ["a"] * 8 + ["slow"], "timeout": 0.5})
        assert late.status_code == 504
        assert re.fullmatch(r"no answer within 0\.5 s; [4-8] of 9 rows were done", late.json()["error"])


def test_the_server_has_a_word_where_a_client_has_none(bundles: dict[str, Path], tmp_path: Path) -> None:
    with served.gated(bundles["embeddings"], tmp_path / "gate", timeout_s=0.2) as server:
        for path, body in (("/embed", {"inputs": "slow"}), (TENSORS, tensors("slow"))):
            late = server.post(path, body)
            assert (late.status_code, late.json()["error"]) == (504, "no answer within 0.2 s")
        assert server.get("/health/ready")["ready"] is True
        refused = server.post("/embed", {"inputs": "a"}, **{"x-request-timeout-ms": "soon"})
        assert (refused.status_code, refused.json()["error"]) == (
            400,
            "x-request-timeout-ms is 'soon', expected milliseconds",
        )
