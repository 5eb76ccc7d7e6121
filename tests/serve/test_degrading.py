"""Answers by a fallback while a model's own engine is away, full or out of memory: when, how that is said, its end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
import served
import tritonclient.grpc as triton
from hypothesis import given
from hypothesis import strategies as st
from served import Running, metric, wait_until

from alula.bundles import Bundle
from alula.core.errors import InputError
from alula.core.tensor import Feeds, TensorSpec
from alula.core.words import TOKENS
from alula.serve import ServeOptions
from alula.serve.catalogue import Served
from alula.serve.course import NO_MEMORY_S, WELL_S, Course, Signs
from alula.serve.degrading import Degrading, standing_in
from alula.serve.fleet import Fleet
from alula.serve.outcome import Outcome
from alula.serve.service import Service

ENTER_S = 4.0
MODEL = "tiny/embeddings"
WELL, AWAY, BUSY, LESS = Signs(), Signs(there=False), Signs(wait_s=4.5), Signs(wait_s=2.0)


def reasons(*seen: tuple[float, Signs]) -> list[str | None]:
    """Why something cheaper answers, after each of these sights at their times."""
    course, found = Course(), list[str | None]()
    for now, signs in seen:
        course = course.after(signs, ENTER_S, now)
        found.append(course.reason)
    return found


def test_an_engine_that_is_away_is_not_asked_until_it_has_been_back_for_a_while() -> None:
    back = 3.0 + WELL_S
    assert reasons((0, WELL), (1, AWAY), (2, AWAY), (3, WELL), (back - 0.01, WELL), (back, WELL)) == [
        None,
        *["engine-away"] * 4,
        None,
    ]


def test_a_queue_that_is_too_long_must_become_short_and_not_only_a_little_shorter() -> None:
    assert reasons((0, LESS), (1, BUSY), (2, LESS), (9, LESS), (10, WELL), (10 + WELL_S, WELL)) == [
        None,
        *["overloaded"] * 4,
        None,
    ]
    assert reasons((0, BUSY), (1, WELL), (1.5, LESS), (2.1, WELL), (2.2, WELL))[-1] == "overloaded"


def test_an_engine_without_memory_is_left_alone_for_some_seconds() -> None:
    full = Signs(no_memory_at=0.0)
    end = NO_MEMORY_S
    assert reasons((0, full), (end - 0.1, full), (end, full), (end + WELL_S, full)) == [
        *["out-of-memory"] * 3,
        None,
    ]


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 8)), max_size=40))
def test_nobody_is_sent_back_and_forth_faster_than_an_engine_proves_well(
    steps: list[tuple[float, float]],
) -> None:
    now, course, changed = 0.0, Course(), list[float]()
    for gap, wait_s in steps:
        now += gap
        before, course = course, course.after(Signs(wait_s=wait_s), ENTER_S, now)
        if (before.reason is None) != (course.reason is None):
            changed.append(now)
            assert (course.reason is not None) == (wait_s > ENTER_S)
    for entered, left in zip(changed[::2], changed[1::2], strict=False):
        assert left - entered >= WELL_S


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two bundles of one checkpoint."""
    root = tmp_path_factory.mktemp("both")
    return served.make_bundle(root / "own"), served.make_bundle(root / "cheap", name="another/name")


@pytest.fixture
def degrading(both: tuple[Path, Path], tmp_path: Path) -> Iterator[tuple[Running, Path, str]]:
    own, cheap = both
    port = served.free_port()
    options = {
        "fallback": [str(cheap)],
        "max_waiting_rows": 4,
        "max_client_batch": 4,
        "grpc_port": port,
    }
    env = {"SCRIPTED_GATE": str(tmp_path / "gate"), "SCRIPTED_FULL": str(tmp_path / "full")}
    with served.running([own], env=env, **options) as server:
        yield server, tmp_path, f"127.0.0.1:{port}"
        (tmp_path / "gate").touch()


def embed(server: Running, text: str = "a") -> httpx.Response:
    return server.post("/embed", {"inputs": text, "normalize": False})


def because(answer: httpx.Response) -> str | None:
    assert answer.status_code == 200, answer.text
    found: str | None = answer.headers.get("x-alula-degraded")
    return found


def test_a_fallback_answers_while_an_engine_is_away_and_its_own_again_after_that(
    degrading: tuple[Running, Path, str],
) -> None:
    server, folder, _ = degrading
    assert because(embed(server)) is None
    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(embed, server, "slow")
        wait_until(lambda: metric(server, "alula_requests_active") == 1)
        os.kill(server.engine_pid(), signal.SIGKILL)
        wait_until(lambda: server.get("/health")["engine"]["state"] == "restarting")
        assert server.client.get("/health/ready").status_code == 200
        (folder / "gate").touch()
        # What the engine had in hand when it died is answered, too.
        assert because(inside.result()) == "engine-away"
    wait_until(server.restarted)
    wait_until(lambda: because(embed(server)) is None)
    assert server.get("/health")["degraded"] == {}
    assert metric(server, "alula_degraded_requests_total", model=MODEL, tier="fake") >= 1
    _, _, err = server.stop()
    assert f"{MODEL} is answered by its own engine again" in err
    assert f"{MODEL} is answered by its fallback on fake: engine-away" in err


def test_a_full_queue_is_answered_by_the_fallback_and_said_in_every_protocol(
    degrading: tuple[Running, Path, str],
) -> None:
    server, folder, address = degrading
    with ThreadPoolExecutor(8) as pool:
        waiting: list[Future[httpx.Response]] = [pool.submit(embed, server, "slow")]
        wait_until(lambda: metric(server, "alula_requests_active") == 1)
        waiting += [pool.submit(embed, server, "a") for _ in range(4)]
        wait_until(lambda: metric(server, "alula_queue_size") == 4)
        plain = embed(server)
        assert (because(plain), plain.json()) == ("overloaded", [[9.0, 3.0, 1.0, -3.0]])
        theirs = server.post("/v1/embeddings", {"input": "a"})
        assert because(theirs) == theirs.json()["degraded"] == "overloaded"
        assert theirs.json()["model"] == MODEL
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}
        tensors = server.post("/v2/models/own/infer", body)
        assert because(tensors) == tensors.json()["parameters"]["degraded"] == "overloaded"
        with triton.InferenceServerClient(address) as client:
            text = triton.InferInput("text", [1], "BYTES")
            text.set_data_from_numpy(np.array([b"a"], np.object_))
            answer = client.infer(MODEL, [text]).get_response()
            assert answer.parameters["degraded"].string_param == "overloaded"
        assert server.client.get("/health/ready").status_code == 200
        (folder / "gate").touch()
        assert [because(each.result()) for each in waiting] == [None] * 5
    assert because(embed(server)) is None


def test_the_log_says_of_each_request_that_it_was_answered_by_something_cheaper(
    both: tuple[Path, Path], tmp_path: Path
) -> None:
    env = {"SCRIPTED_FULL": str(tmp_path / "full")}
    with served.running([both[0]], env=env, fallback=[str(both[1])], log_format="json") as server:
        (tmp_path / "full").write_text("own")
        assert because(embed(server)) == "out-of-memory"
        _, _, err = server.stop()
    (line,) = [json.loads(line) for line in err.splitlines() if '"/embed"' in line]
    assert (line["degraded"], line["because"], line["model"]) == ("fake", "out-of-memory", MODEL)


def test_an_engine_without_memory_is_helped_out_for_some_seconds(
    degrading: tuple[Running, Path, str],
) -> None:
    server, folder, _ = degrading
    (folder / "full").write_text("own")
    assert because(embed(server)) == "out-of-memory"
    (folder / "full").unlink()
    assert because(embed(server)) == "out-of-memory"
    assert server.get("/health")["degraded"] == {MODEL: "out-of-memory"}
    for each in (MODEL, f"{MODEL} (fallback)"):
        assert metric(server, "alula_canaries_total", model=each, finding="well") >= 1
    assert server.get("/health")["fallback"]["state"] == "ready"
    wait_until(lambda: because(embed(server)) is None, NO_MEMORY_S + WELL_S + 5)


def test_without_degrading_requests_are_refused_instead(both: tuple[Path, Path], tmp_path: Path) -> None:
    own, cheap = both
    options: dict[str, Any] = {"max_waiting_rows": 4, "max_client_batch": 4, "degrade": False}
    with (
        served.gated(own, tmp_path / "gate", fallback=[str(cheap)], **options) as server,
        ThreadPoolExecutor(8) as pool,
    ):
        pool.submit(embed, server, "slow")
        wait_until(lambda: metric(server, "alula_requests_active") == 1)
        for _ in range(4):
            pool.submit(embed, server, "a")
        wait_until(lambda: metric(server, "alula_queue_size") == 4)
        assert embed(server).status_code == 429
        (tmp_path / "gate").touch()


def test_a_fallback_of_another_checkpoint_is_refused_by_name(bundles: dict[str, Path]) -> None:
    said = served.refused([bundles["embeddings"]], fallback=[str(bundles["reranking"])])
    assert "is of tiny/reranking (reranking) and stands in for no served model" in said


@dataclass(frozen=True)
class Reads:
    """What a catalogue knows of a model that reads lines."""

    name: str = "lines"


@dataclass(frozen=True)
class Chats:
    """... and of one that chats about pages, too."""

    name: str = "pages"


def test_what_only_reads_lines_does_not_stand_in_where_a_model_is_to_chat() -> None:
    own, beside = (cast("Fleet", SimpleNamespace(state=state)) for state in ("away", "ready"))
    degrading = Degrading(own, enter_s=1.0)
    degrading.begin(beside, {"pages": cast("Served", Reads())})
    asked = cast("Served", Chats())
    assert degrading.instead(asked, Chats) is asked


def test_a_fallback_that_gives_less_is_refused_at_the_start(bundles: dict[str, Path]) -> None:
    plain = Bundle.open(bundles["embeddings"])
    (encoder,) = plain.model.parts
    tokens = TensorSpec(name=TOKENS, dtype="float32", shape=("batch", "length", 4))
    part = replace(encoder, outputs=(*encoder.outputs, tokens))
    whole = replace(plain, manifest=replace(plain.manifest, model=replace(plain.model, parts=(part,))))

    async def run(feeds: Feeds, wanted: Sequence[str] | None = None) -> Outcome:
        raise AssertionError

    options = ServeOptions(bundles=(plain.root,))
    served_whole, served_plain = (
        Service(bundle, run, options, lambda name, ran: None) for bundle in (whole, plain)
    )
    with pytest.raises(InputError, match=r"gives no token_embeddings, which .* build it with --token-emb"):
        standing_in(plain, [served_whole])
    assert standing_in(whole, [served_plain]).model.name == plain.model.name
