"""The benchmark of HunyuanOCR on a small model: its parts, its questions to workers, what holds and what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bench_gpu_ocr as bench
import numpy as np
import pytest
import tiny_hunyuan
from gpu_bench import ocr_cases, ocr_model, ocr_parts, ocr_worker, record
from gpu_bench.ocr_cases import EXACT, OURS, REFERENCE, VAST
from gpu_bench.wire import WorkerError

from alula.core.profile import GRID
from alula.families import open_checkpoint
from alula.graphs.passes.attention import MOST_SCORES

CPU = ocr_parts.Asked(target="onnxruntime", precision="fp32")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint and the two parts of it that pages are read with."""
    work = tmp_path_factory.mktemp("ocr")
    tiny_hunyuan.checkpoint(work / "checkpoint")
    for name in ("vision-pages", "decoder"):
        ocr_parts.compiled(work / "checkpoint", work / "parts", name, CPU)
    return work


class InPlace:
    """A worker without a process."""

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
    kinds = {REFERENCE: "torch-fp32", OURS: "vision-pages+decoder"}
    return {
        who: InPlace(ocr_worker.handlers(kind, made / "checkpoint", made / "parts", "cpu"))
        for who, kind in kinds.items()
    }


def options(made: Path, *more: str) -> Any:
    return bench.parsed(["measure", "--dry-run", "--work", str(made), *more])


def case(name: str) -> ocr_cases.Case:
    return next(each for each in ocr_cases.cases(tiny=True, rounds=2) if each.name == name)


def test_both_write_the_same_behind_one_page_and_errors_are_beside_it(made: Path, workers: Any) -> None:
    found = bench.case_of(case("errors"), workers, options(made))
    error = found["errors"][OURS]
    assert found["failed"] == {}
    assert 0 < error["largest"] < 1e-4
    assert error["others"] == 0
    assert len(found["answer"]) == case("errors").tokens
    bad = np.load(made / f"{OURS}.logits.npy") + np.float32(1)
    rows, logits = (np.load(made / f"{REFERENCE}.{what}.npy") for what in ("rows", "logits"))
    assert bench.apart(rows, logits, rows, bad)["largest"] > 0.9


@pytest.mark.parametrize("name", ["page 640", "decode 8", "vision 320"])
def test_a_case_has_a_turn_for_everybody_in_every_round(made: Path, workers: Any, name: str) -> None:
    found = bench.case_of(case(name), workers, options(made))
    assert found["failed"] == {}
    assert {who: len(turns) for who, turns in found["turns"].items()} == dict.fromkeys(
        workers, case(name).rounds
    )
    key = {"read": "page_s", "write": "steps_s", "vision": "seconds"}[found["kind"]]
    ratio = ocr_cases.ratio(found, REFERENCE, OURS, key)
    assert ratio is not None
    assert ratio > 0
    assert json.loads(json.dumps(found)) is not None


def test_whoever_fails_is_named_and_the_others_go_on(made: Path, workers: Any) -> None:
    class Broken(InPlace):
        def ask(self, limit_s: float, **message: Any) -> Any:
            raise WorkerError("out of memory")

    both: Any = {**workers, OURS: Broken({})}
    found = bench.case_of(case("vision 320"), both, options(made))
    assert found["failed"] == {OURS: "out of memory"}
    assert list(found["turns"]) == [REFERENCE]
    assert "failed: out of memory" in ocr_cases.markdown({"cases": {"vision 320": found}})


def test_what_is_there_is_neither_built_nor_measured_again(made: Path) -> None:
    chosen = options(made, "--cases", "errors,page 640")
    assert bench.built("decoder", chosen) == "is there"
    assert [each.name for each in bench.chosen(chosen, {"cases": {"errors": {}}})] == ["page 640"]
    again = options(made, "--cases", "errors,page 640", "--again")
    assert len(bench.chosen(again, {"cases": {"errors": {}}})) == 2
    assert bench.kind_of(OURS, chosen) == "vision-pages+decoder"
    assert bench.kind_of(EXACT, chosen) is None, "its parts are not built"
    with pytest.raises(SystemExit, match="no case"):
        bench.chosen(options(made, "--cases", "page 641"), {"cases": {}})


def test_limits_hold_or_do_not_and_what_was_not_measured_does_not() -> None:
    def turn(seconds: float, taken: float) -> dict[str, Any]:
        return {"page_s": seconds, "first_s": 0.05, "steps_s": [0.1], "taken": taken}

    page = {"kind": "read", "turns": {REFERENCE: [turn(8.1, 4e9)], OURS: [turn(1.0, 2.1e9)]}}
    found = {
        each.name.split(",")[0]: each.holds for each in ocr_cases.verdicts({"cases": {"page 640": page}})
    }
    assert found["one page"], "8.1 times"
    assert found["first token"]
    assert not found["device memory"], "0.525"
    assert not found["a 4K page read"], "not measured"
    assert not any(each.holds for each in ocr_cases.verdicts({}))


def test_profiles_take_the_pages_that_are_measured(made: Path) -> None:
    """Those of TensorRT, which is not asked for anything here; sides are of the published checkpoint."""
    spec = ocr_model.spec_of(open_checkpoint(str(made / "checkpoint")))
    wanted = ocr_parts.Asked(target="tensorrt", precision="fp16")
    pages, vast = (ocr_parts.plan(spec, name, wanted).profile for name in ("vision-pages", "vision-vast"))
    assert all(pages.takes({"down": side // 16, "across": side // 16}) for side in (320, 640, 960, 1280))
    assert vast.takes({"down": 128, "across": 128})
    assert vast.takes({"down": 92, "across": 176}), "4096 x 2160 at 4 million pixels"
    heads = 16
    assert heads * pages.largest(GRID) ** 2 <= MOST_SCORES
    assert heads * vast.largest(GRID) ** 2 // 8 < 2**31 - 1
    assert {who for case in ocr_cases.cases(tiny=False, rounds=1) for who in case.who} >= {OURS, VAST, EXACT}


def test_a_record_is_written_last_and_opens(made: Path) -> None:
    engine = record.read(made / "parts" / "decoder" / record.NAME)
    assert engine.plan.profile.axes["past"].min == 0
    assert record.built(made / "parts" / "decoder" / record.NAME).engine_bytes > 0
