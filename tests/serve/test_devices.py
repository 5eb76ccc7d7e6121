"""One server over several devices: an engine process on each, all models in all of them."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import served
from served import Running, metric, running, wait_until

from alula.core.errors import InputError
from alula.core.profile import Range
from alula.serve.options import ServeOptions
from alula.serve.sequences import Load

TWO = ("0", "1")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    for name in ("first", "second"):
        served.make_bundle(root / name, name=f"tiny/{name}")
    return root


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """What texts with "slow" in them wait for."""
    return tmp_path / "gate"


@pytest.fixture
def both(repository: Path, gate: Path) -> Iterator[Running]:
    """A server with one model of the repository on two devices."""
    first, env = [repository / "first"], {"SCRIPTED_GATE": str(gate)}
    with running(first, env, devices=TWO, repository=str(repository), canary_s=0) as server:
        try:
            yield server
        finally:
            gate.touch()


def embed(server: Running, text: str, model: str = "first") -> httpx.Response:
    return server.post("/embed", {"inputs": text, "model": model, "normalize": False})


def engines(server: Running) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get("/health")["engines"]
    return found


def sees(pid: int) -> str:
    """The GPUs that a process was left to see."""
    told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(each for each in told if each.startswith(b"CUDA_VISIBLE_DEVICES=")).decode().partition("=")[2]


def test_each_device_has_a_process_that_sees_no_other(both: Running) -> None:
    assert [sees(each["pid"]) for each in engines(both)] == ["0", "1"]
    assert [each["device"] for each in engines(both)] == ["0", "1"]
    assert both.get("/health")["engine"] == engines(both)[0]
    for at in ("0", "1"):
        assert metric(both, "alula_engine_resident_memory_bytes", engine=at) > 0


def test_a_batch_goes_to_a_device_that_has_nothing_to_do(both: Running, gate: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        slow: list[Future[httpx.Response]] = [pool.submit(embed, both, "slow")]
        wait_until(lambda: metric(both, "alula_requests_active") == 1)
        for _ in range(5):  # by the other one, while the first is at work
            assert embed(both, "a").status_code == 200
        slow.append(pool.submit(embed, both, "slow"))
        assert not any(each.done() for each in slow)
        gate.touch()
        assert [each.result().status_code for each in slow] == [200, 200]


def test_a_device_whose_process_ends_fails_what_it_had_and_no_more(both: Running, gate: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(embed, both, "slow")
        wait_until(lambda: metric(both, "alula_requests_active") == 1)
        assert embed(both, "crash").status_code == 503
        for _ in range(5):
            health = both.get("/health")
            assert (health["ready"], health["live"], health["status"]) == (True, True, "ready")
        up = {device: metric(both, "alula_engine_up", device=device) for device in ("0", "1")}
        assert sorted(up.values()) == [0, 1]
        wait_until(lambda: [each["state"] for each in engines(both)] == ["ready", "ready"])
        assert sorted(each["restarts"] for each in engines(both)) == [0, 1]
        assert metric(both, "alula_engine_restarts_total") == 1
        assert embed(both, "a").status_code == 200
        gate.touch()
        assert slow.result().status_code == 200


def test_a_model_is_loaded_on_every_device_and_unloaded_from_it(both: Running, gate: Path) -> None:
    load, unload = (f"/v2/repository/models/second/{what}" for what in ("load", "unload"))
    assert both.post(load, {}).status_code == 200
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(embed, both, "slow", "second")
        wait_until(lambda: metric(both, "alula_requests_active") == 1)
        assert embed(both, "a", "second").status_code == 200
        gate.touch()
        assert slow.result().status_code == 200
    # It is there again where a process was, and is let go of everywhere.
    os.kill(engines(both)[1]["pid"], signal.SIGKILL)
    wait_until(lambda: engines(both)[1]["restarts"] == 1 and engines(both)[1]["state"] == "ready")
    assert [embed(both, "a", "second").status_code for _ in range(4)] == [200] * 4
    assert both.post(unload, {}).status_code == 200
    assert embed(both, "a", "second").status_code == 404
    assert embed(both, "a").status_code == 200


def test_a_bundle_that_was_replaced_comes_on_every_device_when_one_has_to_be_started_again(
    both: Running, repository: Path
) -> None:
    shutil.rmtree(repository / "first")
    served.make_bundle(repository / "first", name="tiny/first", length=Range(2, 8, 40))
    os.kill(engines(both)[0]["pid"], signal.SIGKILL)
    wait_until(lambda: both.get("/info")["models"][0]["max_input_length"] == 40)
    wait_until(lambda: bool(both.get("/health")["ready"]))
    assert [embed(both, "a").status_code for _ in range(4)] == [200] * 4
    assert metric(both, "alula_models_loaded") == 1


def test_answers_are_written_where_the_line_is_shortest(tmp_path: Path) -> None:
    root = served.make_writer(tmp_path / "parrot")
    body = {"prompt": "a b", "max_tokens": 4}
    with running([root], devices=TWO) as server, ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: server.post("/v1/completions", body), range(12)))
        assert [each.status_code for each in answers] == [200] * 12
        assert len({each.json()["choices"][0]["text"] for each in answers}) == 1


def test_loads_of_devices_add_up() -> None:
    one = Load(running=1, waiting=2, blocks=3, all_blocks=8, preempted=1)
    assert one + one == Load(running=2, waiting=4, blocks=6, all_blocks=16, preempted=2)


def test_a_device_is_named_once(tmp_path: Path) -> None:
    for devices in (("0", "0"), ("0", ""), ("0,1",), ("0", "--print-config"), ("first",)):
        with pytest.raises(InputError, match="expected each GPU once"):
            ServeOptions(bundles=(tmp_path,), devices=devices)
    uuids = ("GPU-3f2a1b00-aaaa-bbbb-cccc-0123456789ab", "MIG-GPU-3f2a/1/0")
    assert [each.device for each in ServeOptions(bundles=(tmp_path,), devices=uuids).openings] == list(uuids)
