"""Answers that are being written, and what becomes of them when clients leave, lines are full and engines die."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import served
from served import Running, alive, gated, metric, running, wait_until

TEXT = "/v1/completions"
FOREVER = "abc~|"
MODEL = "tiny/text-generation"

# Left alone, `FOREVER` is written for half a minute.
SLOWLY, UNWRITTEN_S = {"SCRIPTED_STEP_S": "0.12"}, 20.0


@pytest.fixture
def writer(writers: dict[str, Path]) -> Path:
    return writers["chat"]


@contextlib.contextmanager
def streaming(server: Running, prompt: str, **more: Any) -> Iterator[Iterator[Any]]:
    """The objects of a stream, one by one; an error among them too."""
    body = {"prompt": prompt, "stream": True, **more}
    with server.client.stream("POST", TEXT, json=body) as response:
        assert response.status_code == 200, response.read()
        yield (json.loads(line[6:]) for line in response.iter_lines() if line and line != "data: [DONE]")


def said(given: Iterator[Any]) -> str:
    return "".join(one["choices"][0]["text"] for one in given)


def write(server: Running, prompt: str, **more: Any) -> httpx.Response:
    return server.post(TEXT, {"prompt": prompt, **more})


def running_now(server: Running) -> float:
    return metric(server, "alula_answers_running", model=MODEL)


def is_quiet(server: Running) -> bool:
    """Whether the engine holds nothing any more and nobody is being answered."""
    names = (
        "alula_answers_running",
        "alula_answers_waiting",
        "alula_kv_cache_usage_ratio",
        "alula_requests_active",
    )
    return all(metric(server, name) == 0 for name in names)


def test_eight_answers_of_different_lengths_are_written_together_and_each_is_what_it_is_alone(
    writer: Path,
) -> None:
    texts = [chr(ord("a") + at) * (60 + 10 * at) + "." for at in range(8)]
    with running([writer], env={"SCRIPTED_STEP_S": "0.02"}) as server, ThreadPoolExecutor(8) as pool:
        alone = texts[::7]
        for text in alone:
            assert write(server, text + "|").json()["choices"][0]["text"] == text

        def together(text: str) -> str:
            with streaming(server, text + "|") as given:
                return said(given)

        asked = [pool.submit(together, text) for text in texts]
        wait_until(lambda: running_now(server) == len(texts))
        assert [one.result() for one in asked] == texts
        assert metric(server, "alula_time_to_first_token_seconds_count", model=MODEL) == 10
        written = sum(len(text) + 1 for text in (*alone, *texts))
        assert metric(server, "alula_generation_tokens_total", model=MODEL) == written
        assert metric(server, "alula_prompt_tokens_total", model=MODEL) == written
        assert metric(server, "alula_inter_token_latency_seconds_count", model=MODEL) == written - 10
        assert metric(server, "alula_answers_cancelled_total", model=MODEL) == 0
        wait_until(lambda: is_quiet(server))


def test_answers_that_outgrow_the_cache_take_turns_and_lose_nothing(writer: Path) -> None:
    texts = [letter * 60 for letter in "abcd"]
    with running([writer], cache_bytes=256) as server, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda text: write(server, text + "|", max_tokens=70), texts))
        assert [answer.json()["choices"][0]["text"] for answer in answers] == texts
        assert metric(server, "alula_answers_preempted_total", model=MODEL) > 0
        # An answer may be as long as the cache is, and no longer.
        assert server.get("/info")["models"][0]["max_total_tokens"] == 257
        refused = write(server, "a|", max_tokens=256)
        assert refused.status_code == 400
        assert "max_tokens is 256 behind 2 tokens; expected at most 255" in refused.text
        assert write(server, FOREVER).json()["usage"]["total_tokens"] == 257


@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_to_a_client_who_left_is_written_no_further(writer: Path, stream: bool) -> None:
    """ggml-org/llama.cpp#24496: an answer that nobody waited for was written to its end."""
    with running([writer], env=SLOWLY) as server:
        if stream:
            with streaming(server, FOREVER) as given:
                assert "".join(next(given)["choices"][0]["text"] for _ in range(5)) == "abc~a"
                assert running_now(server) == 1
        else:
            with pytest.raises(httpx.ReadTimeout):
                server.client.post(TEXT, json={"prompt": FOREVER, "n": 2}, timeout=0.3)
        wait_until(lambda: is_quiet(server), UNWRITTEN_S)
        assert metric(server, "alula_answers_cancelled_total", model=MODEL) == (1 if stream else 2)
        assert metric(server, "alula_generation_tokens_total", model=MODEL) < 500
        assert write(server, "abc|").json()["choices"][0]["text"] == "abc"


def test_the_answer_to_a_client_who_left_before_it_was_in_the_line_is_not_written(
    writer: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    env = {**SLOWLY, "SCRIPTED_GATE": str(gate)}
    with running([writer], env=env) as server, ThreadPoolExecutor(1) as pool:
        held = pool.submit(write, server, "GATE|")
        wait_until(lambda: metric(server, "alula_requests_active") == 1)
        with pytest.raises(httpx.ReadTimeout):
            server.client.post(TEXT, json={"prompt": FOREVER}, timeout=0.3)
        gate.touch()
        assert held.result().status_code == 200
        wait_until(lambda: is_quiet(server), UNWRITTEN_S)
        assert metric(server, "alula_generation_tokens_total", model=MODEL) == len("GATE") + 1


def test_what_the_engine_refuses_takes_no_place_in_the_line(tmp_path: Path) -> None:
    root = served.make_writer(tmp_path / "wide", vocab_size=1_000)

    with running([root], max_sequences=1, max_waiting=1) as server:

        def answer(prompt: list[Any]) -> httpx.Response:
            """The first that is no 429: what is cancelled counts until the engine has confirmed it."""
            answers: list[httpx.Response] = []

            def let_in() -> bool:
                answers.append(server.post(TEXT, {"prompt": prompt}))
                return answers[-1].status_code != 429

            wait_until(let_in)
            return answers[-1]

        for _ in range(4):
            refused = answer([300])
            assert refused.status_code == 400
            assert "the prompt has token 300; the model knows 0..257" in refused.text
            assert answer([[97, 65], [300]]).status_code == 400
        wait_until(lambda: is_quiet(server))
        assert write(server, "abc|", n=2).status_code == 200


def test_one_who_leaves_the_line_leaves_those_behind_alone(writer: Path) -> None:
    """ggml-org/llama.cpp#24496 and its kin: what one client cancelled was another's."""
    with running([writer], max_sequences=1) as server, streaming(server, FOREVER) as first:
        next(first)
        with pytest.raises(httpx.ReadTimeout):
            server.client.post(TEXT, json={"prompt": "gone|"}, timeout=0.2)
        with ThreadPoolExecutor(1) as pool:
            behind = pool.submit(write, server, "behind|")
            wait_until(lambda: metric(server, "alula_answers_waiting", model=MODEL) == 1)
            assert len(said(first)) > 100
            assert behind.result().json()["choices"][0]["text"] == "behind"


def test_a_client_who_reads_nothing_is_cancelled_before_memory_grows(tmp_path: Path) -> None:
    root = served.make_writer(tmp_path / "long", max_length=1_000_000)
    options = {"cache_bytes": 1_000_000, "max_body_bytes": 5_000_000}
    with running([root], env={"SCRIPTED_STEP_S": "0"}, **options) as server:
        host, port = server.url.removeprefix("http://").split(":")
        body = json.dumps({"prompt": FOREVER, "stream": True, "n": 4, "logprobs": 20, "max_tokens": 200_000})
        before = metric(server, "process_resident_memory_bytes")
        with socket.create_connection((host, int(port))) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            head = f"POST {TEXT} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall((head + body).encode())
            wait_until(lambda: running_now(server) == 4)
            wait_until(lambda: running_now(server) == 0, 60)
            assert metric(server, "alula_generation_tokens_total", model=MODEL) < 60_000
            assert metric(server, "process_resident_memory_bytes") - before < 100e6
            text = b""
            while b"error" not in text and (some := connection.recv(1 << 20)):
                text = text[-2000:] + some
        assert b"the client left 4096 pieces of the answer unread; it was cancelled" in text
        wait_until(lambda: is_quiet(server))


def test_a_full_line_is_told_at_once_and_is_no_reason_to_be_unready(writer: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with gated(writer, gate, max_sequences=1, max_waiting=2) as server, ThreadPoolExecutor(3) as pool:
        first = pool.submit(write, server, "GATE|")
        wait_until(lambda: metric(server, "alula_requests_active") == 1)
        others = [pool.submit(write, server, "b|") for _ in range(2)]
        wait_until(lambda: metric(server, "alula_requests_active") == 3)
        full = write(server, "c|")
        assert full.status_code == 429
        assert full.headers["retry-after"] == "1"
        assert full.json()["error"]["code"] == "overloaded"
        streamed = write(server, "c|", stream=True)
        assert (streamed.status_code, streamed.headers["content-type"]) == (429, "application/json")
        assert server.client.get("/health/ready").status_code == 200
        gate.touch()
        assert [one.result().status_code for one in (first, *others)] == [200] * 3
        assert write(server, "c|").status_code == 200


def test_several_answers_are_let_in_all_or_none(writer: Path) -> None:
    with running([writer], max_sequences=2, max_waiting=2) as server, streaming(server, FOREVER) as first:
        next(first)
        assert write(server, "b|", n=4).status_code == 429
        assert write(server, "b|", n=5).status_code == 413
        assert write(server, "b|", n=3).status_code == 200
        said(first)
        wait_until(lambda: is_quiet(server))


def test_a_model_of_another_kind_is_answered_while_answers_are_written(
    writer: Path, bundles: dict[str, Path]
) -> None:
    with running([writer, bundles["embeddings"]]) as server, streaming(server, FOREVER) as given:
        before = said(next(given) for _ in range(3))
        for _ in range(5):
            assert server.post("/embed", {"inputs": "a", "normalize": False}).json() == [
                [9.0, 3.0, 1.0, -3.0]
            ]
        assert running_now(server) == 1
        assert before + said(given) == ("abc~" * 200)[:507]


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_dies_fails_what_it_was_writing_and_is_started_again(
    writer: Path, stream: bool
) -> None:
    with running([writer]) as server:
        pid = server.engine_pid()
        if stream:
            with streaming(server, FOREVER) as given:
                next(given)
                os.kill(pid, signal.SIGKILL)
                *_, last = given
        else:
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(write, server, FOREVER)
                wait_until(lambda: running_now(server) == 1)
                os.kill(pid, signal.SIGKILL)
                assert asked.result().status_code == 503
                last = asked.result().json()
        assert last["error"] == {
            "message": "the engine process ended while it wrote the answer",
            "type": "unhealthy_error",
            "code": "unavailable",
            "param": None,
        }
        wait_until(server.restarted)
        assert write(server, "abc|").json()["choices"][0]["text"] == "abc"
        assert is_quiet(server)


@pytest.mark.parametrize("order", ["CRASH", "LOST"])
def test_an_engine_that_dies_of_a_prompt_answers_the_next(writer: Path, order: str) -> None:
    with running([writer]) as server:
        failed = write(server, f"{order}|")
        assert failed.status_code == (503 if order == "CRASH" else 500)
        assert order == "CRASH" or "the GPU is lost to this process" in failed.text
        wait_until(server.restarted)
        assert write(server, "abc|").status_code == 200


def test_an_engine_that_fails_one_step_goes_on(writer: Path) -> None:
    with running([writer]) as server:
        failed = write(server, "BROKEN|")
        assert failed.status_code == 500
        assert "bad kernel" in failed.json()["error"]["message"]
        assert write(server, "abc|").json()["choices"][0]["text"] == "abc"
        assert server.get("/health")["engine"]["restarts"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_hangs_is_ended(writer: Path, stream: bool) -> None:
    with running([writer], run_timeout_s=0.6) as server:
        answer = write(server, "HANG|", stream=stream)
        if not stream:
            assert answer.status_code == 503
        assert "the engine process ended while it wrote the answer" in answer.text
        wait_until(server.restarted)
        assert write(server, "abc|").status_code == 200


def test_an_answer_that_takes_too_long_is_ended_with_an_error(writer: Path) -> None:
    with running([writer], answer_timeout_s=0.3) as server:
        late = write(server, FOREVER)
        assert late.status_code == 504
        error = {
            "message": "the answer was not finished within 0.3 s",
            "type": "timeout_error",
            "code": "timeout",
            "param": None,
        }
        assert late.json()["error"] == error
        with streaming(server, FOREVER) as given:
            *before, last = given
        assert said(iter(before)).startswith("abc~abc~")
        assert last["error"] == error
        wait_until(lambda: is_quiet(server))
        assert write(server, "abc|").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_server_finishes_the_answers_that_it_writes(writer: Path, number: int) -> None:
    with running([writer], env={"SCRIPTED_STEP_S": "0.01"}) as server:
        engine = server.engine_pid()
        text = "abcdefgh" * 10
        with streaming(server, text + "|") as given:
            begun = next(given)["choices"][0]["text"]
            server.process.send_signal(number)
            wait_until(lambda: server.client.get("/health/ready").status_code == 503)
            assert server.get("/health/live")["status"] == "draining"
            assert write(server, "a|").status_code == 503
            assert begun + said(given) == text
        server.process.communicate(timeout=15)
        assert server.process.returncode == 0
        assert not alive(engine)


def test_answers_that_outlast_the_grace_time_end_with_an_error(writer: Path) -> None:
    env = {"SCRIPTED_STEP_S": "0.05"}
    with running([writer], env=env, grace_s=0.3) as server, streaming(server, FOREVER) as given:
        engine = server.engine_pid()
        next(given)
        server.process.send_signal(signal.SIGTERM)
        *before, last = given
        assert said(iter(before)).startswith("bc~")
        assert last["error"]["message"] == "the engine process ended while it wrote the answer"
        server.process.communicate(timeout=15)
        assert server.process.returncode == 0
        assert not alive(engine)
