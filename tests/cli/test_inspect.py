"""`alula inspect` on what engines run: bundles, TensorRT's documents, times, pages, two engines beside each other."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from made import SAMPLES

from alula.build import BuildRequest, build
from alula.cli.app import main
from alula.cli.console import Phases
from alula.core.engine import LAYERS
from alula.core.profile import Range

pytestmark = pytest.mark.timeout(300)


class Said:
    """What one run of the command printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        """The document on stdout."""
        return json.loads(self.out)


@pytest.fixture(scope="module")
def bundles(minilm_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model on both engines of the CPU; nothing loads torch."""
    folder = tmp_path_factory.mktemp("bundles")
    axes = {"batch": Range(1, 1, 2), "length": Range(2, 16, 32)}
    found = {}
    for target in ("openvino", "onnxruntime"):
        request = BuildRequest(
            model=str(minilm_folder),
            to=folder / target,
            target=target,
            precision="fp32",
            axes=axes,
            reference="golden",
            packed=False,
            use_cache=False,
        )
        found[target] = build(request, Phases()).bundle.root
    return found


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The command, in this process."""
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "cache"))

    def run(*args: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["alula", "inspect", *map(str, args)])
        capsys.readouterr()
        code = main()
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


def test_a_bundle_says_in_four_lines_what_its_engine_runs(bundles: dict[str, Path], inspect: Any) -> None:
    said = inspect(bundles["openvino"])
    assert said.code == 0
    lines = said.out.splitlines()
    begins = next(at for at, line in enumerate(lines) if line.startswith("what runs"))
    found = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[begins + 1 :] if line.strip()}
    assert list(found) == ["nodes", "layers", "attention", "precision"]
    assert found["nodes"].startswith("196 in the graph: ")
    assert found["attention"] == "fused, 6 of 6: both products and the softmax are in one layer, Subgraph"
    assert "verified" in said.out


def test_json_carries_the_layers_beside_the_manifest(bundles: dict[str, Path], inspect: Any) -> None:
    report = inspect(bundles["onnxruntime"], "--json").json
    assert report["manifest"]["model"]["task"] == "embeddings"
    assert report["fusion"]["source"] == "onnxruntime"
    nodes = report["fusion"]["nodes"]
    assert nodes["known"] is True
    assert nodes["fused"] + nodes["alone"] + nodes["removed"] == nodes["graph"] == 132
    kinds = {layer["kind"] for layer in report["fusion"]["layers"]}
    assert {"MatMul", "Attention", "BiasGelu"} <= kinds


def test_layers_are_listed_timed_and_drawn(bundles: dict[str, Path], inspect: Any, tmp_path: Path) -> None:
    html = tmp_path / "report.html"
    said = inspect(bundles["openvino"], "--time", "--shape", "2x16", "--layers", "--html", html)
    assert said.code == 0, said.err
    assert "time the layers of" in said.err
    row = next(line for line in said.out.splitlines() if "layer.0.intermediate.dense/Add" in line)
    assert "MatMul + Add + Gelu" in row
    assert float(row.split()[-2]) > 0
    assert "the same as pooling/Cast" in said.out
    page = html.read_text("utf-8")
    assert "Where time goes" in page
    assert "2x16, the mean of 30 calls" in page
    assert page.count("<svg") == 3


def test_two_engines_of_one_model_are_held_beside_each_other(
    bundles: dict[str, Path], inspect: Any, tmp_path: Path
) -> None:
    html = tmp_path / "both.html"
    said = inspect(bundles["openvino"], bundles["onnxruntime"], "--html", html)
    assert said.code == 0, said.err
    assert "FullyConnected" in said.out
    changed = [line.split() for line in said.out.splitlines() if line.startswith("Gelu ")]
    assert changed == [["Gelu", "6", "with", "Add,", "MatMul", "with", "Add"]]
    assert "Nodes that run otherwise" in html.read_text("utf-8")
    report = inspect(bundles["openvino"], bundles["onnxruntime"], "--json").json
    assert {change["op"] for change in report["comparison"]["changes"]} >= {"MatMul", "Add", "Gelu"}
    assert report["engines"] == [str(bundles["openvino"]), str(bundles["onnxruntime"])]


def test_a_bundle_from_before_layers_were_kept_opens_and_says_how_to_get_them(
    bundles: dict[str, Path], inspect: Any, tmp_path: Path
) -> None:
    old = older(bundles["onnxruntime"], tmp_path / "old")
    said = inspect(old)
    assert said.code == 0
    assert "what runs: " in said.out
    assert "holds no layers of its engine (onnxruntime)" in said.out
    assert "build it again to see what runs" in said.out
    assert "holds no layers" in inspect(old, "--json").json["fusion"]["missing"]
    for asked in (("--layers",), ("--html", tmp_path / "x.html"), (bundles["openvino"],)):
        refused = inspect(old, *asked)
        assert refused.code == 2
        assert "holds no layers of its engine" in refused.err


def older(bundle: Path, to: Path) -> Path:
    """The bundle as an alula wrote it that kept no layers."""
    shutil.copytree(bundle, to)
    manifest = json.loads((to / "manifest.json").read_text())
    manifest["files"] = [file for file in manifest["files"] if not file["path"].endswith(LAYERS)]
    (to / "manifest.json").write_text(json.dumps(manifest))
    for path in to.rglob(LAYERS):
        path.unlink()
    return to


def test_what_tensorrt_wrote_is_read_without_a_bundle(inspect: Any, tmp_path: Path) -> None:
    times = tmp_path / "profile.json"
    times.write_text(
        json.dumps(
            [
                {"count": 100},
                {"name": "node_conv2d + node_relu", "timeMs": 90.0, "averageMs": 0.9},
                {"name": "__myl_CastReshCast_myl4_4", "timeMs": 10.0, "averageMs": 0.1},
            ]
        )
    )
    html = tmp_path / "page.html"
    convnet = SAMPLES / "tensorrt-10-convnet.json"
    said = inspect(convnet, "--times", times, "--layers", "--html", html)
    assert said.code == 0, said.err
    assert "CaskConvolution 90 %, kgen (cast) 10 %; casts 10 %" in said.out
    assert "the graph is not at hand" in said.out
    assert "node_conv2d, node_relu" in said.out
    assert html.read_text("utf-8").count("<svg") == 3
    other = inspect(convnet, SAMPLES / "tensorrt-11-convnet.json")
    assert other.code == 0
    assert "fp32 6, tf32 1" in other.out
    same = inspect(convnet, convnet)
    assert same.out.splitlines()[-1] == "each of the 8 nodes that both graphs have runs the same way in both"
    foreign = inspect(convnet, SAMPLES / "tensorrt-8.6-bert.json")
    assert foreign.out.splitlines()[-1] == "no node is in both graphs: are these engines of one model?"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nowhere.json",), "nowhere.json: does not exist"),
        (("SAMPLE", "--time"), "is a file; --time needs a bundle, whose engine can be run"),
        (("SAMPLE", "--shape", "1x8"), "--shape says what to time; give it with --time"),
        (("SAMPLE", "--time", "--shape", "1x8,2x8"), "--shape '1x8,2x8': expected one shape, such as 1x128"),
        (("SAMPLE", "--time", "--shape", "huge"), "--shape 'huge': expected ROWSxTOKENS, such as 1x128"),
        (("SAMPLE", "--times", "SAMPLE"), "is a dict, expected a list of layers with their times"),
        (("SAMPLE", "SAMPLE", "--times", "SAMPLE"), "--times takes measured times for one engine"),
        (
            ("SAMPLE", "--html", "nowhere/report.html"),
            "--html nowhere/report.html: there is no folder nowhere",
        ),
        (("LIST",), "is a list, expected the object that lists an engine's layers"),
        (("BROKEN",), "is not readable JSON"),
        (
            ("OTHER",),
            "OTHER.json: lists no layers; expected a bundle's layers.json, or what TensorRT's inspector or",
        ),
        (("NONE",), "NONE.json: Layers: is empty: the engine has no layers"),
        (("SAMPLE", "--times", "LIST"), "alula: LIST.json: times: none of these 0 is of a layer here"),
        (("SAMPLE", "--times", "THEIRS"), "alula: THEIRS.json: times: none of these 2 is of a layer here"),
        (("SAMPLE", "--times", "NUMBERS"), "alula: NUMBERS.json: times[0]: is not an object"),
        (("a.txt",), "a.txt: is a file, expected the folder of a bundle"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(
    args: tuple[str, ...], message: str, inspect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    contents = {
        "LIST": "[]",
        "BROKEN": "{",
        "OTHER": "{}",
        "NONE": '{"Layers": [], "Bindings": []}',
        "THEIRS": '[{"count": 9}, {"name": "of another engine", "averageMs": 1.5}]',
        "NUMBERS": "[5]",
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(content)
    (tmp_path / "a.txt").write_text("x")
    given = {name: f"{name}.json" for name in contents}
    given["SAMPLE"] = str(SAMPLES / "tensorrt-10-convnet.json")
    said = inspect(*(given.get(arg, arg) for arg in args))
    assert said.code == 2
    assert said.err.startswith("alula: ")
    assert message in said.err


def test_a_shape_that_the_engine_was_not_built_for_is_refused(bundles: dict[str, Path], inspect: Any) -> None:
    said = inspect(bundles["onnxruntime"], "--time", "--shape", "1x33")
    assert said.code == 2
    assert "axis 'length' is 33; built for 2..32" in said.err
