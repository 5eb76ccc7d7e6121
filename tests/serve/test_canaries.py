"""Engines that answer wrongly, fail, or lose their device: what canaries find, and what health says of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import served
from hypothesis import given
from hypothesis import strategies as st
from served import Running, metric, running, wait_until

from alula.bundles import Bundle
from alula.serve.canary import canary_of
from alula.serve.pulse import FAILURES, Finding, Pulse

MODEL = "tiny/embeddings"


def after(*findings: Finding) -> list[str]:
    """What is to be done after each of these."""
    pulse, verdicts = Pulse(), list[str]()
    for finding in findings:
        pulse, verdict = pulse.after(finding)
        verdicts.append(verdict)
    return verdicts


def test_a_wrong_answer_has_the_engine_started_again_once_and_then_given_up() -> None:
    assert after("well", "wrong", "wrong") == ["leave", "restart", "give up"]
    assert after("wrong", "away", "away", "wrong") == ["restart", "leave", "leave", "give up"]
    assert after("wrong", "well", "wrong") == ["restart", "leave", "restart"]


def test_errors_in_a_row_have_it_started_again_and_single_ones_do_not() -> None:
    assert after("failed", "failed", "well", "failed", "failed") == ["leave"] * 5
    assert after("failed", "away", "failed", "failed", "failed") == [
        "leave",
        "leave",
        "leave",
        "restart",
        "leave",
    ]


@given(st.lists(st.sampled_from(["well", "away"])))
def test_an_engine_that_is_well_or_away_is_left_alone(findings: list[Finding]) -> None:
    assert set(after(*findings)) <= {"leave"}
    assert FAILURES > 1


def test_the_smallest_stored_sample_is_asked(bundles: dict[str, Path]) -> None:
    bundle = Bundle.open(bundles["embeddings"])
    canary = canary_of(bundle)
    assert canary is not None
    assert canary._compared({"a": np.ones(3)}, {"a": np.ones(3) * 2}) == ("well", "")
    assert canary._compared({"a": np.array([1.0, np.nan])}, {"a": np.array([1.0, 7.0])}) == ("well", "")
    for found in ({}, {"a": -np.ones(3)}, {"a": np.full(3, np.nan)}, {"a": np.ones(4)}):
        assert canary._compared({"a": np.ones(3)}, found)[0] == "wrong"


def embedding(server: Running) -> Any:
    return server.post("/embed", {"inputs": "a", "normalize": False})


def found(server: Running, finding: Finding) -> float:
    return metric(server, "alula_canaries_total", finding=finding)


def test_an_engine_that_answers_wrongly_is_started_again_and_one_that_goes_on_to_is_not_live(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    with running([bundles["embeddings"]], env={"SCRIPTED_WRONG": str(wrong)}, canary_s=0.1) as server:
        wait_until(lambda: found(server, "well") >= 2)
        assert server.get("/health")["canaries"] == {MODEL: "well"}
        wrong.touch()
        wait_until(lambda: found(server, "wrong") >= 1)
        wrong.unlink()
        wait_until(server.restarted)
        before = found(server, "well")
        wait_until(lambda: found(server, "well") > before)
        assert embedding(server).json() == [[9.0, 3.0, 1.0, -3.0]]
        wrong.touch()
        wait_until(lambda: server.client.get("/health/live").status_code == 503)
        health = server.get("/health")
        assert (health["status"], health["ready"]) == ("broken", False)
        assert health["engine"]["reason"] == (
            f"{MODEL}: output 'embedding' of a stored sample is not what it was at the start"
        )
        assert embedding(server).status_code == 503
        code, _, err = server.stop()
    assert code == 0
    assert "engine process is given up" in err


def test_an_engine_that_fails_again_and_again_is_started_again(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    fails = tmp_path / "fails"
    with running([bundles["embeddings"]], env={"SCRIPTED_FAILS": str(fails)}, canary_s=0.1) as server:
        wait_until(lambda: found(server, "well") >= 1)
        fails.touch()
        wait_until(lambda: server.get("/health")["engine"]["restarts"] == 1)
        fails.unlink()
        wait_until(server.restarted)
        assert found(server, "failed") >= FAILURES
        assert embedding(server).status_code == 200


def test_one_that_has_much_to_do_is_late_with_its_canary_and_well(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with served.gated(bundles["embeddings"], gate, canary_s=0.1) as server:
        wait_until(lambda: found(server, "well") >= 1)
        slow = threading.Thread(target=server.post, args=("/embed", {"inputs": "slow"}))
        slow.start()
        wait_until(lambda: metric(server, "alula_requests_active") == 1)
        before = found(server, "well")
        with pytest.raises(AssertionError, match="did not come about"):
            wait_until(lambda: found(server, "well") > before + 1, 0.6)
        assert server.client.get("/health/ready").status_code == 200
        gate.touch()
        slow.join()
        wait_until(lambda: found(server, "well") > before + 1)
        assert server.get("/health")["engine"]["restarts"] == 0


def test_a_lost_device_is_not_live_until_a_new_process_has_it(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    lost = tmp_path / "lost"
    with running([bundles["embeddings"]], env={"SCRIPTED_LOST": str(lost)}) as server:
        lost.touch()
        assert server.post("/embed", {"inputs": "lost"}).status_code == 500
        wait_until(lambda: server.client.get("/health/live").status_code == 503)
        assert server.get("/health")["engine"]["reason"] != ""
        lost.unlink()
        wait_until(server.restarted)
        assert server.client.get("/health/live").status_code == 200
        assert embedding(server).status_code == 200
