from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import served
from served import PASSED, Running, alive, gated, metric, refused, running, wait_until

from alula.core.check import Check
from alula.core.errors import MissingExtraError
from alula.core.profile import Range
from alula.serve import ServeOptions, serve
from alula.serve.options import ENGINE_COMMAND

OWN_GRAPH_ONLY = Check(
    **{**{key: getattr(PASSED, key) for key in PASSED.__slots__}, "reference": "own-graph"}
)


def embed(server: Running, text: str) -> httpx.Response:
    return server.post("/embed", {"inputs": text, "normalize": False})


def later(server: Running, text: str, answers: list[Any]) -> threading.Thread:
    def ask() -> None:
        try:
            answers.append(embed(server, text))
        except httpx.HTTPError as error:
            answers.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def test_requests_that_arrive_together_run_together_and_get_their_own_answers(
    bundles: dict[str, Path], gate: Path
) -> None:
    with gated(bundles["embeddings"], gate) as server:
        slow = later(server, "slow", [])
        wait_until(lambda: metric(server, "alula_requests_active") == 1)
        texts = ["a", "b", "a a", "b b", "hello", "world", "a b a", "lives"]
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(embed, server, text) for text in texts]
            wait_until(lambda: metric(server, "alula_queue_size") == 8)
            gate.touch()
        slow.join()
        answers = [future.result().json()[0][1] for future in asked]
        assert answers == [3, 3, 4, 4, 3, 3, 5, 3]
        assert metric(server, "alula_batch_size_count") == 3
        assert metric(server, "alula_batch_size_sum") == 9


def test_a_killed_engine_is_started_again_and_health_tells(bundles: dict[str, Path], gate: Path) -> None:
    with gated(bundles["embeddings"], gate) as server:
        answers: list[httpx.Response] = []
        asking = later(server, "slow", answers)
        wait_until(lambda: metric(server, "alula_requests_active") == 1)
        first = server.engine_pid()
        os.kill(first, signal.SIGKILL)
        asking.join()
        assert answers[0].status_code == 503
        assert answers[0].json() == {
            "error": "the engine process ended during the run",
            "error_type": "unhealthy",
        }
        assert answers[0].headers["retry-after"] == "1"
        assert server.get("/health/live")["live"] is True
        wait_until(lambda: server.client.get("/health/ready").status_code == 200)
        assert embed(server, "a").status_code == 200
        assert server.engine_pid() != first
        assert server.get("/health")["engine"]["restarts"] == 1
        assert metric(server, "alula_engine_restarts_total") == 1
        assert not alive(first)


def test_of_requests_under_load_only_those_in_flight_fail_and_service_is_back_in_three_seconds(
    bundles: dict[str, Path],
) -> None:
    """Clients that ask one after the other: whoever comes while the engine is away waits for it."""
    asked: list[tuple[float, float, httpx.Response]] = []
    over = threading.Event()

    def client(server: Running) -> None:
        while not over.is_set():
            began = time.monotonic()
            answer = embed(server, "a")
            asked.append((began, time.monotonic(), answer))

    clients = 8
    with (
        running([bundles["embeddings"]], engine_command=ENGINE_COMMAND) as server,
        ThreadPoolExecutor(clients) as pool,
    ):
        for _ in range(clients):
            pool.submit(client, server)
        wait_until(lambda: len(asked) > 50)
        killed = time.monotonic()
        os.kill(server.engine_pid(), signal.SIGKILL)
        wait_until(server.restarted)
        wait_until(lambda: asked[-1][0] > killed and asked[-1][2].status_code == 200)
        over.set()
    failed = [(began, ended, answer) for began, ended, answer in asked if answer.status_code != 200]
    assert len(failed) <= clients
    for _, ended, answer in failed:
        assert ended > killed
        assert answer.json()["error"].startswith("the engine process ended")
    back = min(ended for began, ended, answer in asked if began > killed and answer.status_code == 200)
    assert back - killed < 3


def test_an_engine_that_dies_of_one_request_answers_the_next(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]]) as server:
        assert embed(server, "crash").status_code == 503
        wait_until(lambda: server.client.get("/health/ready").status_code == 200)
        assert embed(server, "a").status_code == 200


def test_an_engine_whose_device_is_lost_answers_so_and_is_started_again(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]]) as server:
        lost = embed(server, "lost")
        assert lost.status_code == 500
        assert "the GPU is lost to this process" in lost.text
        wait_until(server.restarted)
        assert embed(server, "a").status_code == 200


def test_an_engine_that_dies_too_often_is_given_up_and_the_server_is_not_live(tmp_path: Path) -> None:
    root = served.make_bundle(tmp_path / "one")
    with running([root]) as server:
        (root / "graphs" / "encoder.fp32.onnx").unlink()
        os.kill(server.engine_pid(), signal.SIGKILL)
        wait_until(lambda: server.client.get("/health/live").status_code == 503, 40)
        health = server.get("/health/live")
        assert health["status"] == "broken"
        assert "encoder.fp32.onnx: is missing" in health["engine"]["reason"]
        answer = embed(server, "a")
        assert (answer.status_code, answer.json()["error_type"]) == (503, "unhealthy")
        code, _, _ = server.stop()
        assert code == 0


def test_a_bundle_that_was_replaced_is_not_served_by_an_engine_started_again(tmp_path: Path) -> None:
    root = served.make_bundle(tmp_path / "one")
    with running([root], engine_command=ENGINE_COMMAND) as server:
        root.rename(tmp_path / "old")
        served.make_bundle(root, reference=9.0, checks=(OWN_GRAPH_ONLY,))
        assert embed(server, "a").status_code == 200  # by the engine that was proved
        os.kill(server.engine_pid(), signal.SIGKILL)
        wait_until(lambda: server.get("/health")["status"] == "broken", 20)
        health = server.client.get("/health/ready")
        assert health.status_code == 503
        reason = "the bundle was replaced or changed while it was served"
        assert reason in health.json()["engine"]["reason"]
        answer = embed(server, "a")
        assert (answer.status_code, answer.json()["error_type"]) == (503, "unhealthy")
        assert reason in answer.json()["error"]
        assert server.get("/health")["engine"]["restarts"] == 1
        _, _, err = server.stop()
    assert err.count(reason) == 1


def test_an_engine_started_again_is_not_opened_from_a_damaged_file(tmp_path: Path) -> None:
    root = served.make_bundle(tmp_path / "one")
    with running([root], engine_command=ENGINE_COMMAND) as server:
        (root / "graphs" / "encoder.fp32.onnx").write_bytes(b"no GRAPH")
        os.kill(server.engine_pid(), signal.SIGKILL)
        wait_until(lambda: "was changed since" in server.get("/health")["engine"]["reason"], 20)
        assert server.client.get("/health/ready").status_code == 503


def test_a_server_is_ready_only_once_the_files_are_proved_too(tmp_path: Path) -> None:
    root = served.make_bundle(tmp_path / "one")
    (root / "graphs" / "encoder.fp32.onnx").write_bytes(b"no GRAPH")
    assert "was changed since the bundle was built" in refused([root], engine_command=ENGINE_COMMAND)


def test_an_engine_that_hangs_is_ended(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]], run_timeout_s=0.5) as server:
        answer = embed(server, "hang")
        assert answer.status_code == 503
        assert answer.json()["error"] == "the engine gave no answer within 0.5 s"
        wait_until(lambda: server.client.get("/health/ready").status_code == 200)
        assert embed(server, "a").status_code == 200


def test_a_killed_front_leaves_no_engine_behind(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]]) as server:
        engine = server.engine_pid()
        later(server, "hang", [])
        wait_until(lambda: metric(server, "alula_requests_active") == 1)
        server.process.kill()
        wait_until(lambda: not alive(engine))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stopped_server_finishes_what_it_admitted(
    bundles: dict[str, Path], gate: Path, number: int
) -> None:
    """triton-inference-server/server#6287: a stop ended what was in flight, and let new requests in."""
    with gated(bundles["embeddings"], gate) as server:
        answers: list[httpx.Response] = []
        engine = server.engine_pid()
        asking = [later(server, "slow " * count, answers) for count in (1, 2, 3)]
        wait_until(lambda: metric(server, "alula_requests_active") == 3)
        server.process.send_signal(number)
        wait_until(lambda: server.client.get("/health/ready").status_code == 503)
        assert server.get("/health/live")["status"] == "draining"
        late = server.post("/embed", {"inputs": "a"})
        assert (late.status_code, late.json()["error"]) == (503, "the server is stopping")
        gate.touch()
        for thread in asking:
            thread.join()
        out, _ = server.process.communicate(timeout=15)
        assert [answer.status_code for answer in answers] == [200] * 3
        assert server.process.returncode == 0
        assert not alive(engine)
        assert out.startswith("loaded:")


def test_what_takes_longer_than_the_grace_time_is_cut_off(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]], grace_s=0.2) as server:
        answers: list[httpx.Response] = []
        engine = server.engine_pid()
        asking = later(server, "hang", answers)
        wait_until(lambda: metric(server, "alula_requests_active") == 1)
        code, _, _ = server.stop()
        asking.join()
        assert code == 0
        assert not alive(engine)
        assert answers[0].status_code == 503
        assert answers[0].json()["error_type"] == "unhealthy"


def test_a_full_queue_is_told_at_once_and_is_no_reason_to_be_unready(
    bundles: dict[str, Path], gate: Path
) -> None:
    with gated(bundles["embeddings"], gate, max_waiting_rows=4, max_client_batch=4) as server:
        asking = [later(server, "slow", [])]
        wait_until(lambda: metric(server, "alula_requests_active") == 1)
        asking += [later(server, "slow a", []) for _ in range(4)]
        wait_until(lambda: metric(server, "alula_queue_size") == 4)
        answer = embed(server, "a")
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error_type"] == "overloaded"
        openai = server.post("/v1/embeddings", {"input": "a"})
        assert (openai.status_code, openai.json()["error"]["code"]) == (429, "overloaded")
        assert server.client.get("/health/ready").status_code == 200
        gate.touch()
        for thread in asking:
            thread.join()
        assert embed(server, "a").status_code == 200


def test_the_rows_of_a_client_who_left_are_not_run(bundles: dict[str, Path], gate: Path) -> None:
    """ggml-org/llama.cpp#24496: work for a client who had left went on and held its place."""
    with gated(bundles["embeddings"], gate) as server:
        slow = later(server, "slow", [])
        wait_until(lambda: metric(server, "alula_requests_active") == 1)
        with pytest.raises(httpx.ReadTimeout):
            server.client.post("/embed", json={"inputs": ["a"] * 3}, timeout=0.5)
        wait_until(lambda: metric(server, "alula_requests_active") == 1)
        gate.touch()
        slow.join()
        assert embed(server, "b").status_code == 200
        assert metric(server, "alula_batch_size_sum") == 2


def test_an_engine_with_a_smallest_batch_and_length_answers_one_short_text(tmp_path: Path) -> None:
    root = served.make_bundle(tmp_path / "one", batch=Range(3, 4, 4))
    with running([root]) as server:
        assert embed(server, "a").json() == [[9.0, 3.0, 1.0, -3.0]]


def test_an_unverified_bundle_is_served_on_demand_only_and_says_so(tmp_path: Path) -> None:
    root = served.make_bundle(tmp_path / "one", checks=(OWN_GRAPH_ONLY,))
    assert "is not verified: no check compared it with anything but its own graph" in refused([root])
    with running([root], unverified=True) as server:
        assert server.get("/info")["models"][0]["verified"] is False


def test_a_changed_bundle_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    root = served.make_bundle(tmp_path / "one")
    (root / "graphs" / "encoder.fp32.onnx").write_bytes(b"another")
    assert "encoder.fp32.onnx: has 7 bytes, expected 8" in refused([root])


def test_what_the_engine_process_refuses_is_what_the_server_says(bundles: dict[str, Path]) -> None:
    said = refused([bundles["embeddings"]], env={"SCRIPTED_REFUSES": "1"})
    assert f"InputError: {bundles['embeddings']}: the script refuses" in said
    said = refused([bundles["embeddings"]], env={"SCRIPTED_DIES": "1"})
    assert "EngineAway: the engine process ended" in said


def test_two_bundles_of_one_model_are_refused(bundles: dict[str, Path], tmp_path: Path) -> None:
    other = served.make_bundle(tmp_path / "other", name="tiny/embeddings")
    assert "two bundles hold the model 'tiny/embeddings'" in refused([bundles["embeddings"], other])


def test_where_the_libraries_of_a_server_are_missing_the_words_that_install_them_are_said(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtraError, match=r"serving needs: pip install 'alula\[serve\]'"):
        serve(ServeOptions(bundles=(bundles["embeddings"],), port=0))


def test_a_port_in_use_is_refused_by_its_number(bundles: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused([bundles["embeddings"]], port=port)
    assert f"port {port} on 127.0.0.1 is in use; name another with --port" in said


def test_a_server_stopped_while_it_loads_leaves_nothing(bundles: dict[str, Path]) -> None:
    process = served.start([bundles["embeddings"]])
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=15)
    assert process.returncode in {0, -signal.SIGTERM}


FORBIDDEN = {"torch", "transformers", "onnx", "onnx_ir", "onnxruntime", "openvino"}


def test_the_front_loads_no_framework_and_no_runtime(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]], engine_command=ENGINE_COMMAND) as server:
        assert embed(server, "a").json() == [[9.0] * 4]
        _, out, _ = server.stop()
    loaded = set(out.split(":")[1].split())
    assert {"uvicorn", "starlette", "tokenizers"} <= loaded
    assert not loaded & FORBIDDEN


def test_the_engine_process_loads_no_framework_and_no_http() -> None:
    code = (
        "import sys, alula.serve, alula.serve.engine_process, alula.serve.opening; "
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not set(out.split()) & (FORBIDDEN | {"uvicorn", "starlette", "fastapi", "tokenizers"})
