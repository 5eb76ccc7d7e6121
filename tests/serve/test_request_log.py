from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from served import Running, running

from alula.serve.records import MOST_SPANS, Record, current, recording


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
    with recording(record()) as found:
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


def logged(server: Running) -> dict[str, dict[str, Any]]:
    """Stops the server; what it logged, by the ids of the requests."""
    _, _, err = server.stop()
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    return {line["request_id"]: line for line in lines}


def test_whatever_a_path_holds_is_one_line(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]], log_format="json") as server:
        server.client.get("/x%22%0Ay", headers={"x-request-id": "abc"})
        line = logged(server)["abc"]
    assert (line["status"], line["outcome"], line["route"]) == (404, "refused", "other")
    assert line["path"] == '/x"\ny'
