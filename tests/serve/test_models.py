"""Models that are loaded, replaced and unloaded while others are served."""

from __future__ import annotations

import asyncio
import gc
import shutil
import signal
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
import served
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from served import Running, metric, running, wait_until

from alula.core.profile import Range
from alula.serve.named import Named
from alula.serve.options import ENGINE_COMMAND, ServeOptions
from alula.serve.server import Server

LOAD, UNLOAD = "/v2/repository/models/{}/load", "/v2/repository/models/{}/unload"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    served.make_bundle(root / "first", name="tiny/first")
    served.make_bundle(root / "second", "reranking", name="tiny/second")
    (root / "notes").mkdir()
    served.make_bundle(tmp_path / "outside", name="tiny/outside")
    return root


def embed(server: Running, model: str, text: str = "a") -> httpx.Response:
    return server.post("/embed", {"inputs": text, "model": model, "normalize": False})


def load(server: Running, name: str) -> httpx.Response:
    return server.post(LOAD.format(name), {})


def index(server: Running) -> dict[str, str]:
    return {each["name"]: each["state"] for each in server.post("/v2/repository/index", {}).json()}


def names(server: Running) -> list[str]:
    return [each["id"] for each in server.get("/v1/models")["data"]]


@pytest.fixture
def one(repository: Path) -> Iterator[Running]:
    """A server with one model of the repository."""
    with running([repository / "first"], repository=str(repository)) as server:
        yield server


def test_a_model_is_loaded_and_unloaded_beside_one_that_is_served(one: Running) -> None:
    assert index(one) == {"first": "READY", "second": "UNAVAILABLE"}
    asked = {"query": "a", "texts": ["a", "b"], "model": "second"}
    assert one.post("/rerank", asked).status_code == 404
    assert load(one, "second").status_code == 200
    assert one.post("/rerank", asked).status_code == 200
    assert index(one) == {"first": "READY", "second": "READY"}
    assert names(one) == [each["id"] for each in one.get("/info")["models"]] == ["tiny/first", "tiny/second"]
    assert one.get("/v2/models/second")["name"] == "tiny/second"
    assert metric(one, "alula_models_loaded") == 2
    assert metric(one, "alula_model_load_duration_seconds_count", outcome="loaded") == 1
    assert metric(one, "alula_model_memory_bytes", model="tiny/second") > 0
    pid = one.engine_pid()
    assert one.post(UNLOAD.format("tiny/second"), {}).status_code == 200
    assert one.post("/rerank", asked).status_code == 404
    assert names(one) == ["tiny/first"]
    assert index(one)["second"] == "UNAVAILABLE"
    assert embed(one, "first").status_code == 200
    assert one.engine_pid() == pid


def test_a_model_is_replaced_under_load_and_every_answer_is_that_of_one_of_both(
    one: Running, repository: Path
) -> None:
    # The new version answers other sizes: so whose answer it was is seen by its length.
    stop, statuses, lengths = Event(), list[int](), list[int]()

    def ask(at: int) -> None:
        with httpx.Client(base_url=one.url, timeout=20) as client:
            while not stop.is_set():
                answer = client.post("/predict" if at < 0 else "/embed", json={"inputs": ["a b", "a"]})
                statuses.append(answer.status_code)
                lengths.append(len(answer.json()))

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, at) for at in range(4)]
        wait_until(lambda: len(statuses) > 50)
        for version in range(3):
            served.make_bundle(repository / "first", name="tiny/first", length=Range(2, 8, 40 - version))
            assert load(one, "first").status_code == 200
            (model,) = one.get("/info")["models"]
            assert model["max_input_length"] == 40 - version
            reached = len(statuses)
            wait_until(lambda: len(statuses) > reached + 50)  # noqa: B023 - called at once
        stop.set()
        for each in asking:
            each.result()
    assert set(statuses) == {200}
    assert set(lengths) == {2}
    assert one.get("/health")["engine"]["restarts"] == 0
    assert metric(one, "alula_requests_total", route="/embed", status="200") == len(statuses)


def test_nothing_of_a_model_that_was_unloaded_stays_though_nobody_collects(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def unloaded() -> None:
        given = (repository / "first",)
        options = ServeOptions(bundles=given, repository=str(repository), engine_command=served.SCRIPTED)
        server = Server(options, Named.all_at(given))
        try:
            await server.load()
            service = weakref.ref(server.catalogue.services[0])
            await server.models.unload("first")
            while service() is not None:
                await asyncio.sleep(0.01)
        finally:
            await server.stop()

    gc.disable()  # as good as never, which is how often a server's collector looks at everything
    try:
        asyncio.run(asyncio.wait_for(unloaded(), 20))
    finally:
        gc.enable()
    assert "tiny/first is served no more" in caplog.text


def test_requests_in_flight_finish_on_the_old_model(repository: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with served.gated(repository / "first", gate, repository=str(repository)) as server:
        with ThreadPoolExecutor(2) as pool:
            slow = pool.submit(embed, server, "first", "slow")
            wait_until(lambda: metric(server, "alula_requests_active") == 1)
            served.make_bundle(repository / "first", name="tiny/first", length=Range(2, 8, 32))
            loading = pool.submit(load, server, "first")
            assert embed(server, "second").status_code == 404
            gate.touch()
            assert slow.result().status_code == 200
            assert loading.result().status_code == 200
        assert embed(server, "first").status_code == 200


def test_a_version_that_answers_otherwise_than_its_reference_takes_no_traffic(repository: Path) -> None:
    first = repository / "first"
    with running([first], repository=str(repository), engine_command=ENGINE_COMMAND) as server:
        before = embed(server, "first").json()
        served.make_bundle(first, name="tiny/first", reference=-1.0)
        answer = load(server, "first")
        assert (answer.status_code, "cosine" in answer.json()["error"]) == (500, True)
        assert embed(server, "first").json() == before
        served.make_bundle(first, name="tiny/first", length=Range(2, 8, 40))
        assert load(server, "first").status_code == 200
        assert server.get("/health")["ready"]
        assert server.get("/health")["engine"]["restarts"] == 0


def test_a_version_that_fails_leaves_the_old_one_serving(one: Running, repository: Path) -> None:
    before = embed(one, "first").json()
    served.make_bundle(repository / "first", name="tiny/first", checks=(), length=Range(2, 8, 40))
    answer = load(one, "first")
    assert answer.status_code == 400
    assert "is not verified" in answer.json()["error"]
    # What lies there now is damaged, and would not even be read.
    next((repository / "first" / "graphs").rglob("*.onnx")).write_bytes(b"damaged")
    answer = load(one, "first")
    assert answer.status_code == 400
    assert "graphs/" in answer.json()["error"]
    assert embed(one, "first").json() == before
    assert one.get("/health")["ready"]
    assert metric(one, "alula_model_load_duration_seconds_count", outcome="failed") == 2
    assert metric(one, "alula_models_loaded") == 1


def test_a_bundle_whose_process_dies_does_not_take_the_others_along(repository: Path, tmp_path: Path) -> None:
    mark = tmp_path / "dies"
    with running(
        [repository / "first"], env={"SCRIPTED_DIES_ON": str(mark)}, repository=str(repository)
    ) as server:
        mark.touch()
        answer = load(server, "second")
        assert (answer.status_code, "ended with 7" in answer.text) == (500, True)
        assert embed(server, "first").status_code == 200
        assert server.get("/health")["engine"]["restarts"] == 0


def test_a_name_is_no_path_and_only_what_lies_there_is_loaded(one: Running, repository: Path) -> None:
    for name in ("outside", "../outside", "%2e%2e/outside", str(repository / "second"), "notes", ""):
        assert load(one, name).status_code == 404, name
    answer = one.post(LOAD.format("second"), {"parameters": {"config": "{}"}})
    assert (answer.status_code, "'config' is not supported" in answer.text) == (400, True)
    assert names(one) == ["tiny/first"]


def test_two_bundles_of_one_name_are_not_served_beside_one_another(one: Running, repository: Path) -> None:
    served.make_bundle(repository / "third", name="tiny/first")
    answer = load(one, "third")
    assert (answer.status_code, "two bundles hold the model" in answer.text) == (400, True)
    assert embed(one, "first").status_code == 200
    assert load(one, "second").status_code == 200


def test_nobody_loads_anything_where_no_folder_was_named(server: Running) -> None:
    answer = load(server, "embeddings")
    assert (answer.status_code, "--repository" in answer.json()["error"]) == (403, True)
    assert server.post("/v2/repository/index", {}).status_code == 403


def test_who_has_a_key_that_is_no_administrators_loads_nothing(repository: Path) -> None:
    keys = "ann annskey1;bob bobskey1 admin"
    with running([], repository=str(repository), api_keys=keys) as server:
        path = LOAD.format("first")
        for key, status in (("annskey1", 403), ("bobskey1", 200)):
            assert server.post(path, {}, authorization=f"Bearer {key}").status_code == status
        assert server.post(path, {}).status_code == 401


def test_a_server_begins_with_nothing_and_is_ready(repository: Path) -> None:
    with running([], repository=str(repository)) as server:
        assert server.get("/health")["ready"]
        assert embed(server, "first").status_code == 404
        assert load(server, "first").status_code == 200
        assert embed(server, "first").status_code == 200
        # What was loaded while serving is there again after the engine was.
        server.post("/embed", {"inputs": "crash", "model": "first"})
        wait_until(server.restarted)
        assert embed(server, "first").status_code == 200


def test_changed_bundles_are_loaded_again_upon_a_signal(one: Running, repository: Path) -> None:
    served.make_bundle(repository / "first", name="tiny/first", length=Range(2, 8, 40))
    one.process.send_signal(signal.SIGHUP)
    wait_until(lambda: one.get("/info")["models"][0]["max_input_length"] == 40)
    assert embed(one, "first").status_code == 200


def test_a_broken_bundle_is_not_loaded_upon_a_signal_the_log_says_why_and_what_was_served_is(
    one: Running, repository: Path
) -> None:
    (repository / "first" / "manifest.json").write_text("{ no manifest")
    one.process.send_signal(signal.SIGHUP)
    wait_until(
        lambda: metric(one, "alula_model_load_duration_seconds_count", outcome="failed") == 1,
    )
    assert embed(one, "first").status_code == 200
    assert one.get("/health")["ready"]
    # Nor does it say where it lies once the engine cannot open it any more.
    assert embed(one, "first", "crash").status_code == 503
    wait_until(lambda: bool(one.get("/health")["missing"]))
    health, answer = one.client.get("/health").text, embed(one, "first")
    assert answer.status_code == 503
    for said in (health, answer.text, one.post("/v2/repository/index", {}).text):
        assert "first/manifest.json: cannot be read" in said
        assert str(repository) not in said
    _, _, err = one.stop()
    assert f"{repository}/first is not loaded, and what was served before is" in err


def test_to_load_what_is_served_already_proves_its_files_again(one: Running, repository: Path) -> None:
    assert load(one, "first").status_code == 200
    (repository / "first" / "graphs" / "encoder.fp32.onnx").write_bytes(b"no GRAPH")
    answer = load(one, "first")
    assert answer.status_code == 400
    assert "first/graphs/encoder.fp32.onnx" in answer.json()["error"]
    assert str(repository) not in answer.text
    assert embed(one, "first").status_code == 200


def test_health_has_no_canary_of_a_model_that_was_unloaded(repository: Path) -> None:
    with running([repository / "first"], repository=str(repository), canary_s=0.1) as server:
        assert load(server, "second").status_code == 200
        wait_until(lambda: "tiny/second" in server.get("/health")["canaries"])
        assert server.post(UNLOAD.format("second"), {}).status_code == 200
        assert list(server.get("/health")["canaries"]) == ["tiny/first"]


def test_a_bundle_that_was_replaced_is_loaded_when_the_engine_has_to_be_started_again(
    one: Running, repository: Path
) -> None:
    served.make_bundle(repository / "first", name="tiny/first", length=Range(2, 8, 40))
    assert embed(one, "first", "crash").status_code == 503
    wait_until(one.restarted)
    assert embed(one, "first").status_code == 200
    assert one.get("/info")["models"][0]["max_input_length"] == 40
    shutil.rmtree(repository / "first")
    one.post("/embed", {"inputs": "crash"})
    wait_until(lambda: one.get("/health")["missing"] != {})
    assert not one.get("/health")["ready"]
    assert embed(one, "first").status_code == 503


def test_tritons_clients_load_and_unload(repository: Path) -> None:
    port = served.free_port()
    with running([repository / "first"], repository=str(repository), grpc_port=port) as server:
        with triton_http.InferenceServerClient(server.url.removeprefix("http://")) as http:
            http.load_model("second")
            assert http.is_model_ready("second")
            http.unload_model("second")
            assert [each["state"] for each in http.get_model_repository_index()] == ["READY", "UNAVAILABLE"]
            with pytest.raises(triton_http.InferenceServerException, match="no bundle 'none'"):
                http.load_model("none")
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{port}") as grpc:
            grpc.load_model("second")
            assert grpc.is_model_ready("second")
            found = grpc.get_model_repository_index()
            assert [(each.name, each.state) for each in found.models] == [
                ("first", "READY"),
                ("second", "READY"),
            ]
            grpc.unload_model("second")
            with pytest.raises(triton_grpc.InferenceServerException, match="no bundle 'none'"):
                grpc.load_model("none")
            with pytest.raises(triton_grpc.InferenceServerException, match="'config' is not supported"):
                grpc.load_model("second", config="{}")


def test_a_model_that_writes_goes_on_while_it_is_replaced(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    root.mkdir()
    served.make_writer(root / "chat")
    with running([root / "chat"], repository=str(root)) as server:
        asked = {"prompt": "abc~|", "max_tokens": 300, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=asked) as answer:
            lines = answer.iter_lines()
            next(lines)
            served.make_writer(root / "chat", max_length=400)
            with httpx.Client(base_url=server.url, timeout=20) as other:
                assert other.post(LOAD.format("chat"), json={}).status_code == 200
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"length"' in rest[-2] or '"length"' in rest[-3]
        assert server.post("/v1/completions", {"prompt": "ab|"}).status_code == 200
        assert metric(server, "alula_answers_running", model="tiny/text-generation") == 0


MB = 1 << 20


def weighing(repository: Path, **options: Any) -> AbstractContextManager[Running]:
    """A server whose models take 100 MB each, beside what little they are."""
    served.make_bundle(repository / "third", name="tiny/third")
    return running([], env={"SCRIPTED_WEIGHS": str(100 * MB)}, repository=str(repository), **options)


def test_a_model_without_room_is_refused_with_all_sizes(repository: Path) -> None:
    with weighing(repository, memory_bytes=280 * MB) as server:
        for name in ("first", "second"):
            assert load(server, name).status_code == 200
        taken = metric(server, "alula_model_memory_bytes", model="tiny/first")
        assert 90 * MB < taken < 140 * MB
        answer = load(server, "third")
        assert answer.status_code == 409
        for word in ("third takes 1", "--memory 280 MiB", "tiny/first 1", "tiny/second 1", "unload one"):
            assert word in answer.json()["error"]
        assert embed(server, "first").status_code == 200
        # A replacement stands beside the old one until it takes its place.
        served.make_bundle(repository / "first", name="tiny/first", length=Range(2, 8, 40))
        assert load(server, "first").status_code == 409
        assert server.post(UNLOAD.format("second"), {}).status_code == 200
        assert load(server, "first").status_code == 200
        assert server.get("/info")["models"][0]["max_input_length"] == 40


def test_who_was_not_used_for_longest_makes_room_and_comes_back_when_it_is_asked(repository: Path) -> None:
    asked = {"query": "a", "texts": ["a", "b"], "model": "second"}
    with weighing(repository, memory_bytes=280 * MB, unload_idle=True) as server:
        for name in ("first", "second"):
            assert load(server, name).status_code == 200
        assert embed(server, "first").status_code == 200
        assert load(server, "third").status_code == 200
        # The second one, which nobody has asked, has gone; it is still named, and comes back by itself.
        assert metric(server, "alula_models_loaded") == 2
        assert metric(server, "alula_model_memory_bytes", model="tiny/second") == 0
        assert names(server) == ["tiny/first", "tiny/second", "tiny/third"]
        late = server.post("/rerank", {**asked, "timeout": 0.001})
        assert late.status_code == 504
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: server.post("/rerank", asked), range(8)))
        assert [answer.status_code for answer in answers] == [200] * 8
        assert metric(server, "alula_models_loaded") == 2
        assert server.get("/health")["ready"]
        assert index(server) == dict.fromkeys(("first", "second", "third"), "READY")
        for name in ("first", "third", "first"):
            assert embed(server, name).status_code == 200
        assert server.get("/health")["engine"]["restarts"] == 0


def test_a_server_whose_models_have_no_room_does_not_begin(repository: Path) -> None:
    weighs = {"SCRIPTED_WEIGHS": str(100 * MB)}
    told = served.refused([repository / "first", repository / "second"], weighs, memory_bytes=150 * MB)
    assert "what is named at the start is too much; of --memory 150 MiB" in told
