"""The benchmark of HunyuanOCR on a small model: its parts, its questions to workers, what holds and what does not."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_gpu_ocr as bench
import numpy as np
import onnx
import pytest
from fake_gpu import FakeCudart
from gpu_bench import (
    ocr_building,
    ocr_cases,
    ocr_measuring,
    ocr_model,
    ocr_parts,
    ocr_report,
    ocr_worker,
    record,
)
from gpu_bench.ocr_blocks import PATCHES, Chain, bounds
from gpu_bench.ocr_cases import ALONE, COMPILED, EXACT, LARGE, OURS, REFERENCE, TOGETHER, VAST
from gpu_bench.wire import WorkerError
from gpus import pretended
from oldest import refusals

from alula import engines, graphs
from alula.core.engine import Engine
from alula.core.errors import RunError
from alula.core.profile import GRID
from alula.families import open_checkpoint
from alula.graphs.passes.attention import MOST_SCORES

CPU = ocr_parts.Asked(target="onnxruntime", precision="fp32")
OLDEST = ocr_parts.Asked(target="tensorrt", opset=17)
PAGE = ("vision-page", *ocr_cases.blocks_of("decoder"))
LONG = ocr_cases.blocks_of("long")
VISION = ocr_cases.PARTS[VAST][0][:-3]
EXACTLY = ("vision-exact", *ocr_cases.blocks_of("exact"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, the parts of it that pages are read with, and those that are fp32."""
    work = tmp_path_factory.mktemp("ocr")
    ocr_model.write(work / "checkpoint", "tiny")
    for name in (*PAGE, *EXACTLY):
        ocr_parts.compiled(work / "checkpoint", work / "parts", name, CPU)
    return work


class InPlace:
    """A worker without a process."""

    alive = True

    def __init__(self, handlers: Any) -> None:
        self._handlers = handlers

    def ask(self, limit_s: float, **message: Any) -> Any:
        """The answer, or what a process would say of an error."""
        assert limit_s > 0
        try:
            return self._handlers[message["do"]](message)
        except Exception as error:
            raise WorkerError(str(error)) from error


@pytest.fixture(scope="module")
def workers(made: Path) -> Any:
    kinds = {REFERENCE: "torch-fp32", OURS: "+".join(PAGE), EXACT: "+".join(EXACTLY)}
    return {
        who: InPlace(ocr_worker.handlers(kind, made / "checkpoint", made / "parts", "cpu"))
        for who, kind in kinds.items()
    }


def options(made: Path, *more: str) -> Any:
    return bench.parsed(["measure", "--dry-run", "--work", str(made), *more])


def case(name: str) -> ocr_cases.Case:
    return next(each for each in ocr_cases.cases(tiny=True, rounds=2) if each.name == name)


def measured(name: str, workers: Any, made: Path) -> dict[str, Any]:
    asked = replace(case(name), jobs=1, batches=2)
    return ocr_measuring.case_of(
        asked, {who: workers[who] for who in asked.who if who in workers}, options(made)
    )


def test_both_write_the_same_behind_one_page_and_errors_are_beside_it(made: Path, workers: Any) -> None:
    found = measured("errors", workers, made)
    error = found["errors"][OURS]
    assert found["failed"] == {}
    assert 0 < error["largest"] < 1e-4
    assert error["others"] == 0
    assert [len(each) for each in found["answers"]] == [case("errors").tokens]
    bad = np.load(made / f"{OURS}.to.npy") + np.float32(1)
    rows, logits = (np.load(made / f"{REFERENCE}.{what}.npy") for what in ("rows", "to"))
    assert ocr_measuring.apart(rows, logits, rows, bad)["largest"] > 0.9


def test_fp32_is_the_reference_on_every_grid_alone_and_side_by_side(made: Path, workers: Any) -> None:
    found = measured("parity", workers, made)
    assert found["failed"] == {}
    assert list(found["errors"]) == [EXACT, TOGETHER]
    for error in found["errors"].values():
        assert len(error["of_each"]) == len(ocr_cases.GRIDS) == len(found["answers"])
        assert 0 < max(error["of_each"]) == error["largest"] < 1e-4
        assert error["others"] == 0
    results = {"cases": {"parity": found}}
    held = [each for each in ocr_report.verdicts(results) if "alula fp32" in each.name]
    assert len(held) == 4
    assert all(each.holds for each in held)
    found["errors"][TOGETHER]["largest"] = 2e-4
    assert sum(not each.holds for each in ocr_report.verdicts(results) if "alula fp32" in each.name) == 1


@pytest.mark.parametrize("name", ["page 640", "decode 8", "vision 320"])
def test_a_case_has_a_turn_for_everybody_in_every_round(made: Path, workers: Any, name: str) -> None:
    found = measured(name, workers, made)
    assert found["failed"] == {}
    assert {who: len(turns) for who, turns in found["turns"].items()} == dict.fromkeys(
        (REFERENCE, OURS), case(name).rounds
    )
    key = {"read": "page_s", "write": "steps_s", "vision": "seconds"}[found["kind"]]
    ratio = ocr_report.ratio(found, REFERENCE, OURS, key)
    assert ratio is not None
    assert ratio > 0
    assert json.loads(json.dumps(found)) is not None


def test_pages_come_from_files_ahead_of_the_engine(made: Path, workers: Any) -> None:
    found = measured("stream 640", workers, made)
    assert found["failed"] == {}
    for turn in found["turns"][OURS]:
        assert turn["pages"] == 2 * case("stream 640").count
        assert 0 <= turn["waited_s"] < turn["pool_s"]
    assert "pages/s" in ocr_report.markdown({"cases": {"stream 640": found}})


def test_what_a_process_takes_is_what_is_lost_while_it_answers(made: Path, monkeypatch: Any) -> None:
    free = iter([100, 70, 60, 55, 40, 38])  # around loading, then around two answers: others took 10 and 15
    monkeypatch.setattr(ocr_worker, "opener", lambda *given: (lambda: next(free), lambda: None))
    answers = ocr_worker.handlers("torch-fp32", made / "checkpoint", made / "parts", "cpu")
    assert [answers["loaded"]({})["taken"] for _ in range(2)] == [35, 37]


def test_whoever_fails_is_named_and_the_others_go_on(made: Path, workers: Any) -> None:
    class Broken(InPlace):
        def ask(self, limit_s: float, **message: Any) -> Any:
            raise WorkerError("out of memory")

    found = measured("vision 320", {**workers, OURS: Broken({})}, made)
    assert found["failed"] == {OURS: "out of memory"}
    assert list(found["turns"]) == [REFERENCE]
    assert "failed: out of memory" in ocr_report.markdown({"cases": {"vision 320": found}})


def test_a_contender_that_does_not_load_is_started_twice_at_most(made: Path) -> None:
    asked = options(made, "--python-torch", f"{sys.executable} -c exit(3)")
    with ExitStack() as opened:
        field = ocr_measuring.Field(options=asked, opened=opened, told={})
        assert [field.those([REFERENCE, COMPILED]) for _ in range(4)] == [{}] * 4
        assert field.starts == {REFERENCE: ocr_measuring.STARTS}, "torch.compile was not asked for"
        assert "exit code 3" in field.told[REFERENCE]["failed"]


def test_what_is_there_is_neither_built_nor_measured_again(made: Path) -> None:
    chosen = options(made, "--cases", "errors,page 640")
    assert ocr_building.made("decoder-0", "engine", sys.executable, chosen) == "is there"
    told: dict[str, Any] = {"cases": {"errors": {}}}
    assert [each.name for each in ocr_measuring.chosen(chosen, told)] == ["page 640"]
    again = options(made, "--cases", "errors,page 640", "--again")
    assert len(ocr_measuring.chosen(again, told)) == 2
    assert ocr_measuring.kind_of(OURS, chosen) == "+".join(PAGE)
    assert ocr_measuring.kind_of(VAST, chosen) is None, "its parts are not built"
    with pytest.raises(SystemExit, match="no case"):
        ocr_measuring.chosen(options(made, "--cases", "page 641"), {"cases": {}})


def test_a_part_that_takes_too_long_or_fails_is_told_and_left(made: Path) -> None:
    asked = options(made, "--part-limit", "-59.9")
    said = ocr_building.made("vision-large", "engine", f"{sys.executable} -X importtime", asked)
    assert said.startswith("failed after")
    assert "timed out" in ocr_building.builds(made)["vision-large"]["failed"]
    (made / "vision-large.failed").unlink()


def test_levels_are_for_all_or_for_one() -> None:
    asked = options(Path(), "--level", "2,vision-page=1")
    assert [ocr_building.asked_of(name, asked)["level"] for name in ("vision-page", "long-0")] == [1, 2]
    assert ocr_building.asked_of("long-0", options(Path()))["level"] is None


def test_limits_hold_or_do_not_and_what_was_not_measured_does_not() -> None:
    def turn(seconds: float, taken: float) -> dict[str, Any]:
        return {"page_s": seconds, "first_s": 0.05, "steps_s": [0.1], "taken": taken}

    turns = {REFERENCE: [turn(8.1, 4e9)], OURS: [turn(1.0, 2.1e9)], ALONE: [turn(1.1, 1.9e9)]}
    page = {"kind": "read", "turns": turns}
    found = {
        each.name.split(",")[0]: each.holds for each in ocr_report.verdicts({"cases": {"page 640": page}})
    }
    assert found["one page"], "8.1 times"
    assert found["first token"]
    memory = "device memory, of PyTorch fp32's"
    holds = {
        each.name: each.holds
        for each in ocr_report.verdicts({"cases": {"page 640": page}})
        if memory in each.name
    }
    assert list(holds.values()) == [False, True], "0.525 and 0.475"
    assert not found["a 4K page read"], "not measured"
    assert not any(each.holds for each in ocr_report.verdicts({}))


def test_profiles_take_the_pages_that_are_measured(made: Path) -> None:
    """Those of TensorRT, which is not asked for anything here; sides are of the published checkpoint."""
    spec = ocr_model.spec_of(open_checkpoint(str(made / "checkpoint")))

    def profile(name: str) -> Any:
        return ocr_parts.plan(spec, name, OLDEST).profile

    assert all(
        profile("vision-page").takes({"down": side // 16, "across": side // 16}) for side in (320, 640)
    )
    assert all(
        profile("vision-large").takes({"down": side // 16, "across": side // 16}) for side in (960, 1280)
    )
    before, *layers, behind = (profile(name) for name in VISION)
    for down, across in ((128, 128), (92, 176)):  # 4096 x 2160 at 4 million pixels
        assert all(each.takes({"down": down, "across": across}) for each in (before, behind))
        assert all(each.takes({PATCHES: down * across}) for each in layers)
    heads = 16
    assert heads * profile("vision-large").largest(GRID) ** 2 <= MOST_SCORES
    assert heads * layers[0].largest([PATCHES]) ** 2 // 4 < 2**31 - 1
    exact = profile("vision-exact")
    grids = [page for pages in ocr_cases.GRIDS.values() for page in pages]
    assert all(exact.takes({"down": down, "across": across}) for down, across in grids)
    assert {who for each in ocr_cases.cases(tiny=False, rounds=1) for who in each.who} >= {*ocr_cases.PARTS}
    text = {"answers": 1, "image_tokens": 1}
    for name, rows, new, width in (
        ("decoder-0", 32, 1, 512),
        ("decoder-0", 8, 1, 1024),
        ("decoder-0", 1, 256, 512),
        ("alone-0", 1, 1, 768),
        ("alone-0", 1, 64, 768),
        ("long-0", 4, 256, 2048),
        ("long-0", 1, 1, 4608),
        ("exact-0", len(ocr_cases.GRIDS), 1, 1024),
    ):
        sizes = {"batch": rows, "length": new, "past": width, "total": width + new, **text}
        assert profile(name).takes(sizes), (name, sizes)


@pytest.fixture(scope="module")
def oldest(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every part's graph as TensorRT 8.6 gets it, which is not there."""
    to = tmp_path_factory.mktemp("oldest")
    return {name: ocr_parts.graph_of(made / "checkpoint", to, name, OLDEST) for name in ocr_parts.PLANS}


def test_every_part_is_in_the_words_of_8_6_and_graphs_are_shared(oldest: dict[str, Any]) -> None:
    for name, graph in oldest.items():
        assert graph.opset == 17
        assert refusals(graphs.load(graph.path)) == [], name
        onnx.checker.check_model(str(graph.path), full_check=True)
        assert graph.precision == ("fp32" if "exact" in name else "fp16")
    assert oldest["decoder-1"] == oldest["long-1"] != oldest["exact-1"]
    assert oldest["vision-page"] == oldest["vision-large"]
    assert oldest["decoder-0"] == oldest["alone-0"]
    blocks = [oldest[name] for name in ocr_cases.blocks_of("decoder")]
    assert [spec.name for spec in blocks[1].inputs if "past" not in spec.name][-1] == "states"
    kept = [spec.name for block in blocks for spec in block.inputs if spec.name.startswith("past.")]
    assert kept == [spec.name for spec in oldest["decoder"].inputs if spec.name.startswith("past.")]


def test_what_8_6_gets_reads_pages_as_the_reference_does(made: Path, workers: Any, tmp_path: Path) -> None:
    """Its caches are as wide behind a step as before, and blocks give states to each other in half precision."""
    for name in PAGE:
        ocr_parts.compiled(made / "checkpoint", tmp_path, name, replace(OLDEST, by="onnxruntime"))
    halved = InPlace(ocr_worker.handlers("+".join(PAGE), made / "checkpoint", tmp_path, "cpu"))
    found = measured("errors", {**workers, OURS: halved}, made)
    assert found["failed"] == {}
    assert 1e-5 < found["errors"][OURS]["relative"] < 2e-2
    eight = measured("decode 8", {OURS: halved}, made)
    assert eight["failed"] == {}
    assert len(eight["turns"][OURS]) == 2


def test_blocks_keep_their_caches_on_a_gpu_that_is_pretended(
    made: Path, workers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions, lanes and beds as they are on a GPU: both profiles of each block, steps that are replayed."""
    cudart, real = FakeCudart(), engines.backend
    opened: list[Any] = []

    class Pretended:
        def open(self, engine: Engine) -> Any:
            # How many rows come of patches, the pretended one cannot tell.
            if not any(spec.name.startswith("past.") for spec in engine.inputs):
                return real(engine.backend).open(engine)
            opened.append(pretended(engine.graph, engine.plan, tmp_path / str(len(opened)), cudart))
            return opened[-1]

    def reader(*names: str) -> InPlace:
        monkeypatch.undo()
        for name in names:
            ocr_parts.compiled(
                made / "checkpoint", tmp_path / "parts", name, replace(OLDEST, by="onnxruntime")
            )
        monkeypatch.setattr(engines, "backend", lambda name: Pretended())
        return InPlace(ocr_worker.handlers("+".join(names), made / "checkpoint", tmp_path / "parts", "cpu"))

    there = {REFERENCE: workers[REFERENCE], OURS: reader(*PAGE), LARGE: reader("vision-large", *LONG)}
    found = measured("errors", there, made)
    assert 1e-5 < found["errors"][OURS]["relative"] < 2e-2
    cudart.calls.clear()
    turns = ocr_measuring.case_of(
        replace(case("decode 8"), tokens=30, rounds=1), {OURS: there[OURS]}, options(made)
    )
    assert cudart.calls.count("cudaGraphLaunch") > 3 * 40, "three blocks, most of 29 steps of two turns"
    assert turns["failed"] == {}
    for name in ("decode 32", "pages 1280 x 4"):
        assert measured(name, there, made)["failed"] == {}
    vast = measured("page 4K", {VAST: there[LARGE]}, made)
    assert vast["failed"] == {}
    assert vast["turns"][VAST][0]["prompt"] > 512, "in two pieces"
    exact = measured("parity", {REFERENCE: there[REFERENCE], EXACT: reader(*EXACTLY)}, made)
    assert exact["failed"] == {}
    assert 0 < max(error["largest"] for error in exact["errors"].values()) < 1e-4
    for each in opened:
        each.close()
    assert not cudart.graphs


def test_a_vision_part_in_blocks_sees_what_the_whole_sees(made: Path, tmp_path: Path) -> None:
    """In fp32, so that nothing else is apart; pages of both orientations by the same engines."""
    exactly = replace(OLDEST, by="onnxruntime", precision="fp32")

    def session(name: str) -> Any:
        ocr_parts.compiled(made / "checkpoint", tmp_path, name, exactly)
        return engines.backend("onnxruntime").open(record.read(tmp_path / name / record.NAME))

    whole, blocks = session("vision-large"), [session(name) for name in VISION]
    assert [[spec.name for spec in block.inputs] for block in blocks] == [
        ["patches"],
        *[["states"]] * 3,
        ["patches", "states"],
    ]
    with closing(whole), closing(Chain(blocks)) as chain:
        for down, across in ((8, 12), (12, 8)):
            shape = (down, across, whole.inputs[0].shape[2])
            patches = np.random.default_rng(down).normal(size=shape).astype(np.float32)
            rows: Any = chain.run({"patches": patches})["embeddings"]
            seen: Any = whole.run({"patches": patches})["embeddings"]
            assert rows.shape == seen.shape
            np.testing.assert_allclose(rows, seen, rtol=1e-5, atol=1e-5)


def test_a_block_is_compiled_by_tensorrt_rtx(made: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    rtx = replace(OLDEST, target="tensorrt-rtx")
    built = ocr_parts.compiled(made / "checkpoint", tmp_path, "decoder-1", rtx)
    assert built.engine_bytes > 0
    assert (tmp_path / "decoder-1" / "record.json").is_file()


def test_blocks_are_all_layers_and_none_twice() -> None:
    for layers in (3, 24, 25):
        found = [range(*bounds(index, 3, layers)) for index in range(3)]
        assert [layer for block in found for layer in block] == list(range(layers))
    with pytest.raises(ValueError, match="block 2 of 3 in 2 layers"):
        bounds(2, 3, 2)


def test_all_of_it_runs_on_a_cpu_with_a_small_model(made: Path, capsys: Any) -> None:
    """In processes of their own: what is there of the parts is used, one more is built, and one case measured."""
    words = ["--dry-run", "--work", str(made), "--rounds", "1"]
    assert bench.main(["build", *words, "--parts", "vision-large"]) == 0
    assert "vision-large: engine: " in capsys.readouterr().out
    assert bench.main(["measure", *words, "--cases", "vision 640", "--contenders", f"{OURS},{LARGE}"]) == 1
    results = json.loads((made / "results.json").read_text("utf-8"))
    assert list(results["cases"]["vision 640"]["turns"]) == [REFERENCE, OURS]
    assert results["cases"]["vision 640"]["failed"] == {}
    assert "**vision 640**" in (made / "results.md").read_text("utf-8")


def test_the_error_that_came_first_is_told_where_a_lost_gpu_does_not_say_what_is_free() -> None:
    asked = Counter[str]()

    def free() -> int:
        asked["free"] += 1
        if asked["free"] > 1:
            raise RunError("the GPU is lost")
        return 100

    def answer(message: Mapping[str, Any]) -> Mapping[str, Any]:
        raise RunError(f"{message['do']} failed")

    with pytest.raises(RunError, match="vision failed"):
        ocr_worker.counted(answer, free, [0])({"do": "vision"})


def test_what_an_answer_takes_is_added_up_where_it_fails_too() -> None:
    left, taken = iter([100, 90, 90, 70]), [5]

    def answer(message: Mapping[str, Any]) -> Mapping[str, Any]:
        if message["do"] == "fail":
            raise RunError("out of memory")
        return {"rows": 1}

    asked = ocr_worker.counted(answer, lambda: next(left), taken)
    with pytest.raises(RunError, match="out of memory"):
        asked({"do": "fail"})
    assert asked({"do": "vision"}) == {"rows": 1, "taken": 35}
