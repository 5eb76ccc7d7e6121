from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import served
from rich.console import Console

from alula.cli import top_view
from alula.cli.top_view import View, columns
from alula.core.errors import InputError
from alula.watching import ModelFigures, ProcessFigures, ServerFigures, Unreachable, Watched

ALULA = [sys.executable, "-m", "alula", "top"]

READER = ModelFigures(
    name="minilm",
    requests=12.34,
    p50_s=0.00931,
    p99_s=0.25,
    queued=3,
    queue_p99_s=0.0001,
    batch=4.25,
    padding=0.125,
    read=1_234.0,
    written=0,
    first_p50_s=None,
    next_p50_s=None,
    running=0,
    waiting=0,
    cache=None,
)
WRITER = replace(READER, name="smollm2", batch=None, written=55.5, first_p50_s=0.5, cache=0.25, running=2)
SERVER = ServerFigures(
    status="ready",
    reason="",
    seconds=2.0,
    up_s=7_500.0,
    active=4,
    requests=24.6,
    failed=0.0,
    refused=0.0,
    rejected=0.0,
    left=0.0,
    degraded=0.0,
    restarts=0,
    p50_s=0.009,
    p99_s=1.5,
    models=(READER,),
    processes=(ProcessFigures(name="front", cores=0.25, memory_bytes=123_000_000),),
    gpus=(),
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.00085, "850 us"),
        (0.0093, "9.3 ms"),
        (0.25, "250 ms"),
        (1.239, "1.24 s"),
        (125.0, "2m05s"),
        (11_100.0, "3h05m"),
        (354_000.0, "4d02h"),
    ],
)
def test_times_have_the_digits_that_matter(value: float | None, shown: str) -> None:
    assert top_view.seconds(value) == shown


def drawn(view: View, width: int = 120) -> str:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - of the console
    with console.file:
        console.print(view)
        return console.export_text()


def test_a_view_says_how_the_server_is_and_what_each_model_does() -> None:
    text = drawn(View(url="http://a").seen(SERVER))
    assert "http://a  ready  up 2h05m" in text
    assert "24.6 req/s  p50 9.0 ms  p99 1.50 s  4 active" in text
    (model,) = [" ".join(line.split()) for line in text.splitlines() if line.startswith("minilm")]
    assert model == "minilm 12.3 9.3 ms 250 ms 3 100 us 4.2 12% 1234"
    assert "front 0.25 cores 123 MB" in text
    assert not any(word in text for word in ("failed", "rejected", "degraded", "restarts", "1st token"))


def test_what_should_be_nought_is_shown_where_it_is_not() -> None:
    bad = replace(
        SERVER,
        failed=0.5,
        left=0.25,
        rejected=3.0,
        degraded=1.0,
        restarts=2,
        status="restarting",
        reason="-9",
    )
    text = drawn(View(url="http://a").seen(bad))
    for said in (
        "restarting",
        "-9",
        "0.5 failed/s",
        "3.0 rejected/s",
        "0.2 left/s",
        "1.0 degraded/s",
        "2 restarts",
    ):
        assert said in text


def test_models_that_write_have_columns_of_their_own_and_narrow_terminals_fewer() -> None:
    wide = [column.title for column in columns((READER, WRITER), 160)]
    assert {"batch", "1st token", "cache", "run+wait"} <= set(wide)
    narrow = columns((READER, WRITER), 50)
    assert [column.title for column in narrow] == ["model", "req/s", "p50", "p99", "queue"]
    text = drawn(View(url="http://a").seen(replace(SERVER, models=(READER, WRITER))), width=50)
    assert max(len(line) for line in text.splitlines()) <= 50


def test_where_nobody_answers_any_more_the_last_look_stays() -> None:
    view = View(url="http://a").seen(SERVER).seen(Unreachable("no server answers at http://a: refused"))
    text = drawn(view)
    assert "gone" in text
    assert "no server answers at http://a: refused" in text
    assert "minilm" in text
    assert "gone" not in drawn(view.seen(SERVER))


def test_curves_rise_from_nought() -> None:
    assert top_view.line([0, 4, 8]) == "▁▄█"
    assert top_view.line([0, 0]) == "▁▁"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[served.Running]:
    root = tmp_path_factory.mktemp("top")
    bundles = [served.make_bundle(root / "a", name="tiny/reads"), served.make_writer(root / "b")]
    with served.running(bundles) as running:
        yield running


def looked(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ALULA, *args], capture_output=True, text=True, check=False, timeout=60)


def busy(server: served.Running, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        server.post("/embed", {"inputs": ["a", "b c"]}).raise_for_status()
        server.post("/embed", {"inputs": 3})
        server.post("/v1/completions", {"prompt": "abc", "model": "tiny/text-generation"}).raise_for_status()


def test_one_look_at_a_loaded_server_as_json(server: served.Running) -> None:
    command = [*ALULA, server.url, "--once", "--json", "--interval", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        busy(server, process)
        assert process.stdout is not None
        told = json.loads(process.stdout.read())
    assert process.returncode == 0
    assert (told["command"], told["url"]) == ("top", server.url)
    models = {model["name"]: model for model in told["rows"]}
    reads, writes = models["tiny/reads"], models["tiny/text-generation"]
    assert reads["requests"] > 0
    assert 0 < reads["p50_s"] <= reads["p99_s"]
    assert 1 <= reads["batch"] <= 4
    assert reads["read"] > reads["requests"]
    assert (reads["written"], reads["cache"]) == (0, None)
    assert writes["written"] >= writes["requests"] > 0
    assert writes["first_p50_s"] > 0
    whole = told["server"]
    assert (whole["status"], whole["restarts"], whole["failed"]) == ("ready", 0, 0)
    assert whole["refused"] > 0
    under_way = 1 / whole["seconds"]  # counted by its model before the server counts it
    assert whole["requests"] >= reads["requests"] + writes["requests"] + whole["refused"] - under_way - 0.01
    assert {each["name"] for each in whole["processes"]} == {"front", "engine 0"}
    assert all(each["memory_bytes"] > 1e6 for each in whole["processes"])


def test_a_pipe_gets_one_look_as_text(server: served.Running) -> None:
    done = looked(server.url.removeprefix("http://"), "--interval", "0.2")
    assert done.returncode == 0, done.stderr
    assert f"alula {server.url}  ready" in done.stdout
    assert "tiny/reads" in done.stdout


def test_looks_go_on_where_the_server_went_away(tmp_path: Path) -> None:
    with served.running([served.make_bundle(tmp_path / "a")]) as server:
        command = [*ALULA, server.url, "--json", "--interval", "0.2"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["status"] == "ready"
            server.stop()
            told = [json.loads(process.stdout.readline())["status"] for _ in range(12)]
            process.terminate()  # as Control-C, which a job in the background does not hear
            assert process.wait(10) == 0
    assert "unreachable" in told


def test_where_nothing_is_or_no_server_of_ours_the_error_says_so() -> None:
    gone = looked("localhost:9", "--once")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert gone.stderr.startswith("alula: no server answers at http://localhost:9: ")
    odd = looked("ftp://a", "--once")
    assert odd.returncode == 2
    assert "is no address of a server" in odd.stderr


def test_a_server_that_is_not_ours_is_told_from_one() -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            pass

    page = HTTPServer(("127.0.0.1", 0), Page)
    Thread(target=page.serve_forever).start()
    try:
        watched = Watched.at(f"127.0.0.1:{page.server_port}")
        with pytest.raises(InputError, match="'<html>' is no sample"):
            watched.read(0.0)
        with pytest.raises(InputError, match="gives no health; is alula served there"):
            watched.health()
    finally:
        page.shutdown()
        page.server_close()


def test_a_server_that_asks_for_a_key_gets_it_from_a_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("me opensesame\n")
    with served.running([served.make_bundle(tmp_path / "a")], keys_file=str(keys), private=True) as server:
        closed = looked(server.url, "--once", "--interval", "0.2")
        assert closed.returncode == 2
        assert "/metrics answers 401; name a file with a key by --key-file" in closed.stderr
        opened = looked(server.url, "--once", "--interval", "0.2", "--key-file", str(keys))
        assert opened.returncode == 0, opened.stderr
        assert "ready" in opened.stdout
