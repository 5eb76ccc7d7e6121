"""Any ONNX file from file to answers: built, proved, measured, asked; and what cannot be is refused before any work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import packaged
import pytest
from numpy.typing import NDArray
from onnx import TensorProto
from onnx_bundles import NAMED, SIDES, built, logarithm
from tiny_onnx import (
    branching,
    model_of,
    node,
    numbers,
    picture_net,
    saved,
    token_net,
    value,
)

from alula.benching import BenchRequest, bench_bundles
from alula.bundles import Bundle
from alula.cli.feeds import check_feeds, show_outputs
from alula.cli.inspect import facts
from alula.core.errors import InputError
from alula.core.profile import Range
from alula.core.progress import Silent
from alula.engines import backend
from alula.families import imported
from alula.local import local_engine
from alula.prove import VerifyRequest, verify_bundle
from alula.serve import ServeOptions
from alula.serve.arrays import Arrays
from alula.serve.outcome import Outcome

ENGINES = ("onnxruntime", "openvino")

Feeds = dict[str, NDArray[np.generic]]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(picture_net(), tmp_path_factory.mktemp("model") / "pictures.onnx")


@pytest.mark.parametrize("target", ENGINES)
def test_a_file_becomes_a_bundle_that_is_held_to_the_file(
    target: str, pictures: Path, tmp_path: Path
) -> None:
    bundle = built(pictures, tmp_path / "out", NAMED, target=target, axes=SIDES)
    assert bundle.verified
    checks = {(check.output, check.metric): check for check in bundle.checks}
    assert {check.reference for check in bundle.checks} == {"onnx-file", "own-graph"}
    for output in ("map", "scores"):
        assert checks[output, "rms_error"].samples >= 12
        assert checks[output, "batch_equals_single"].passed
    opened = Bundle.open(tmp_path / "out")
    assert opened.model == bundle.model
    assert str(opened.model.parts[0].outputs[0]) == "map=float32[batch,1,oh,ow]:0:1"
    shown = dict(facts(opened))
    assert shown["takes"] == NAMED
    assert "normalised" not in shown
    assert shown["gives"] == "map=float32[batch,1,oh,ow]:0:1, scores=float32[batch,5]"


def test_a_bundle_is_verified_again_and_measured_with_the_file_at_hand(
    pictures: Path, tmp_path: Path
) -> None:
    bundle = built(pictures, tmp_path / "out", NAMED, precision="fp32", axes=SIDES)
    again = verify_bundle(bundle, VerifyRequest(), Silent())
    assert again.verified
    assert [check.metric for check in again.checks] == [check.metric for check in bundle.checks]
    measured = bench_bundles([again], BenchRequest(rounds=3), Silent())
    # Rows come first in the axes; PyTorch has no part in what comes as an ONNX file.
    assert [(row.engine, row.shape) for row in measured.rows] == [
        ("onnxruntime", "1x16x24"),
        ("onnxruntime", "2x16x24"),
    ]
    assert measured.rows[1].items_per_s == pytest.approx(2e3 / measured.rows[1].p50_ms)


@pytest.mark.parametrize("target", ENGINES)
def test_several_inputs_of_several_types_and_whole_numbers_out(target: str, tmp_path: Path) -> None:
    file = saved(token_net(), tmp_path / "tokens.onnx")
    bundle = built(file, tmp_path / "out", target=target, precision="fp32", axes={"seq": Range(2, 5, 9)})
    assert bundle.verified
    assert {(check.output, check.metric) for check in bundle.checks} == {
        ("vector", "rms_error"),
        ("vector", "max_error"),
        ("best", "value_agreement"),
        ("vector", "batch_equals_single"),
    }


@pytest.mark.parametrize("target", ENGINES)
def test_branches_run_and_no_other_precision_is_tried(target: str, tmp_path: Path) -> None:
    file = saved(branching(), tmp_path / "branching.onnx")
    bundle = built(file, tmp_path / "out", target=target, axes=None)
    assert bundle.verified
    left = [rung for rung in bundle.manifest.rungs if not rung.taken]
    assert [rung.precision for rung in left] == (["bf16"] if target == "openvino" else [])
    assert all("the file has branches or loops" in rung.reason for rung in left)
    with pytest.raises(
        InputError, match="precision 'bf16': the file has branches or loops, which no other precision is"
    ):
        built(file, tmp_path / "bf16", target="openvino", precision="bf16")


def test_a_file_of_eight_bits_is_held_to_eight_bits(tmp_path: Path) -> None:
    nodes = [
        node("QuantizeLinear", "x scale zero", "q"),
        node("DequantizeLinear", "q scale zero", "d"),
        node("MatMul", "d w", "y"),
    ]
    weights = {"w": numbers(4, 4), "scale": np.array(0.05, np.float32), "zero": np.array(3, np.uint8)}
    model = model_of(nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], weights)
    bundle = built(saved(model, tmp_path / "eight.onnx"), tmp_path / "out", target="openvino")
    assert bundle.verified
    assert Bundle.open(tmp_path / "out").model.comes_in == "int8"
    assert {check.limit for check in bundle.checks if check.metric == "rms_error"} == {0.25}


def test_another_graph_than_the_file_fails(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = imported.write

    def spoiled(*given: object) -> object:
        model = write(*given)  # type: ignore[arg-type] # as it is called
        (last,) = [one for one in model.graph if one.op_type == "Sigmoid"]
        last.op_type = "HardSigmoid"
        return model

    monkeypatch.setattr(imported, "write", spoiled)
    bundle = built(pictures, tmp_path / "out", NAMED, precision="fp32", axes=SIDES)
    assert not bundle.passed
    assert {check.output for check in bundle.checks if not check.passed} == {"map"}


def test_fixed_sizes_need_no_axes(pictures: Path, tmp_path: Path) -> None:
    bundle = built(pictures, tmp_path / "out", "x=float32[2,3,16,16]", precision="fp32")
    assert bundle.verified
    assert bundle.engine("encoder").plan.profile.axes == {}
    assert [rung.shape for rung in bundle.manifest.rungs] == ["fixed"]
    measured = bench_bundles([bundle], BenchRequest(rounds=3), Silent())
    assert [row.shape for row in measured.rows] == ["fixed"]


def test_axes_without_usual_sizes_are_asked_for(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"axis 'h' of pictures has no usual sizes \(x=float32\[batch,3,h,w\]\); give --axis h=MIN:OPT:MAX "
        r"--axis w=MIN:OPT:MAX; --inputs fixes or renames axes",
    ):
        built(pictures, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_values_that_the_file_does_not_take_are_refused_until_their_range_is_stated(tmp_path: Path) -> None:
    file = saved(logarithm(), tmp_path / "log.onnx")
    with pytest.raises(InputError) as refused:
        built(file, tmp_path / "out")
    assert str(refused.value) == (
        "log itself does not take what was drawn for it (smallest, 1 rows: batch 1): it gives NaN for 'y'; give real "
        "calls with --data FOLDER, or state what it takes: axes that go together by one name, values by their range, "
        ":LOW:HIGH; now it is --inputs 'x=float32[batch,4]'"
    )
    assert built(file, tmp_path / "out", "x=float32[batch,4]:0.1:9", precision="fp32").verified
    assert verify_bundle(Bundle.open(tmp_path / "out"), VerifyRequest(), Silent()).verified


def test_sizes_that_go_together_are_refused_until_they_have_one_name(tmp_path: Path) -> None:
    inputs = [value("a", ["n", "left"]), value("b", ["n", "right"])]
    file = saved(
        model_of([node("Add", "a b", "y")], inputs, [value("y", ["n", "left"])]), tmp_path / "add.onnx"
    )
    axes = {"left": Range(2, 3, 4), "right": Range(2, 3, 4)}
    with pytest.raises(
        InputError,
        match=r"add itself does not take what was drawn for it \(long and short, 3 rows: batch 3, left 4, right 2\): "
        "it fails: onnxruntime failed: ",
    ):
        built(file, tmp_path / "out", axes=axes)
    one = built(
        file, tmp_path / "out", "b=float32[batch,left]", precision="fp32", axes={"left": Range(2, 3, 4)}
    )
    assert one.verified


def test_arrays_go_in_and_come_out(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = built(pictures, tmp_path / "out", NAMED, precision="fp32", axes=SIDES)
    np.savez(tmp_path / "in.npz", x=numbers(2, 3, 16, 8))
    check_feeds(bundle, tmp_path / "in.npz", tmp_path / "back.npz", others=False)
    show_outputs(bundle, tmp_path / "in.npz", tmp_path / "back.npz", as_json=True)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["output"], row["shape"], row["dtype"]) for row in rows] == [
        ("map", "2x1x8x4", "float32"),
        ("scores", "2x5", "float32"),
    ]
    with np.load(tmp_path / "back.npz") as back:
        assert back["map"].shape == (2, 1, 8, 4)
        assert rows[0]["max"] == pytest.approx(float(back["map"].max()))
    show_outputs(bundle, tmp_path / "in.npz", None, as_json=False)
    assert "scores  2x5      float32" in capsys.readouterr().out
    for feeds, out, others, said in (
        (
            None,
            None,
            False,
            f"task 'tensors' takes --feeds FILE.npz, and nothing else; its arrays are '{NAMED}'",
        ),
        (tmp_path / "in.npz", None, True, "task 'tensors' takes --feeds FILE.npz, and nothing else"),
        (tmp_path / "in.npz", tmp_path / "a.npy", False, "a.npy: expected a file that ends in .npz"),
        (tmp_path / "in.npz", tmp_path / "no" / "a.npz", False, "there is no folder"),
    ):
        with pytest.raises(InputError) as refused:
            check_feeds(bundle, feeds, out, others=others)
        assert said in str(refused.value)


@pytest.mark.parametrize("odd", [8, -1])
def test_rows_that_a_table_has_not_are_refused_on_every_engine(odd: int, tmp_path: Path) -> None:
    """OpenVINO gives some answer for them."""
    model = model_of(
        [node("Gather", "table ids", "y")], [value("ids", ["n"], TensorProto.INT64)], [value("y", ["n", 4])],
        {"table": numbers(8, 4)},
    )  # fmt: skip
    bundle = built(saved(model, tmp_path / "m.onnx"), tmp_path / "out", precision="fp32", target="openvino")
    np.savez(tmp_path / "in.npz", ids=np.array([1, odd]))
    said = rf"in\.npz: 'ids' holds {odd}, and the bundle takes 'ids=int64\[batch\]:0:7'; more is taken where"
    with pytest.raises(InputError, match=said):
        show_outputs(bundle, tmp_path / "in.npz", None, as_json=False)
    np.savez(tmp_path / "in.npz", ids=np.array([0, 7]))
    show_outputs(bundle, tmp_path / "in.npz", None, as_json=False)


def test_rows_of_a_served_bundle_are_those_of_the_file(pictures: Path, tmp_path: Path) -> None:
    bundle = built(pictures, tmp_path / "out", NAMED, precision="fp32", axes=SIDES)
    options = ServeOptions(bundles=(tmp_path / "out",))
    draws = np.random.default_rng(3)
    sizes = [(2, 16, 16), (1, 16, 24), (1, 16, 16)]
    asked = [draws.random((rows, 3, h, w), np.float32) for rows, h, w in sizes]
    engine = local_engine(bundle)
    with closing(backend(engine.backend).open(engine)) as session:
        calls: list[tuple[int, ...]] = []

        async def run(feeds: Mapping[str, NDArray[np.generic]]) -> Outcome:
            calls.append(feeds["x"].shape)
            await asyncio.sleep(0)
            return Outcome(outputs=session.run(feeds))

        async def answers() -> list[Mapping[str, NDArray[np.generic]]]:
            service = Arrays(bundle, run, options, lambda name, ran: None)
            async with service.at_work():
                return list(await asyncio.gather(*(service.answer({"x": each}) for each in asked)))

        for x, found in zip(asked, asyncio.run(answers()), strict=True):
            expected = session.run({"x": x})
            for name, array in expected.items():
                assert found[name] == pytest.approx(np.asarray(array), abs=1e-5)
        assert len(calls) < len(asked), "requests of one shape did not run together"


@pytest.mark.parametrize("target", ENGINES)
@pytest.mark.parametrize(
    ("package", "file", "stated", "axes"),
    [
        (
            packaged.RAPIDOCR,
            "models/ch_PP-OCRv4_det_infer.onnx",
            NAMED,
            {side: Range(32, 64, 96) for side in SIDES},
        ),
        (packaged.RAPIDOCR, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", "x=float32[batch,3,48,192]", {}),
        (packaged.OPEN_NSFW, "open-nsfw.onnx", "input:0=float32[batch,224,224,3]:-128:128", {}),
    ],
    ids=["detection", "orientation", "resnet"],
)
def test_files_that_people_use_are_built_and_held_to(
    package: str, file: str, stated: str, axes: dict[str, Range], target: str, tmp_path: Path
) -> None:
    bundle = built(
        packaged.package(package) / file, tmp_path / "out", stated, target=target, precision="fp32", axes=axes
    )
    assert bundle.verified
    metrics = [check.metric for check in bundle.checks]
    assert metrics == ["rms_error", "max_error", "batch_equals_single"]
    assert all(check.worst < 5e-5 for check in bundle.checks)


def test_a_file_with_operators_of_one_runtime_is_refused_by_name(tmp_path: Path) -> None:
    file = packaged.package(packaged.RAMPART) / "models" / "rampart" / "onnx" / "model_q4.onnx"
    with pytest.raises(InputError, match=r"not ONNX's own: MatMulNBits of com\.microsoft"):
        built(file, tmp_path / "out")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_files_are_compiled_for_tensorrt_rtx(precision: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    file = packaged.package(packaged.RAPIDOCR) / "models" / "ch_PP-OCRv4_det_infer.onnx"
    axes = dict.fromkeys(SIDES, Range(32, 64, 96))
    bundle = built(file, tmp_path / "out", NAMED, target="tensorrt-rtx", precision=precision, axes=axes)
    assert bundle.engine("encoder").graph.precision == precision
    assert bundle.stored.reference == "onnx-file"
    # Without a GPU nothing was run; with one it was judged.
    (rung,) = bundle.manifest.rungs
    assert bundle.checks or "compiled here, not run" in rung.reason
