"""Ranges belong to the weights they were measured on: a checkpoint that was trained on is calibrated again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.core.profile import Range
from alula.core.progress import Silent

AXES = {"batch": Range(1, 2, 8), "length": Range(2, 8, 32)}


def built(model: Path, texts: Path, to: Path) -> Bundle:
    request = BuildRequest(
        model=str(model), to=to, axes=AXES, target="onnxruntime", precision="int8", data=texts
    )
    return build(request, Silent()).bundle


def trained_on(model: Path) -> None:
    """Other weights under the same name: activations behind the first layer get several times as large."""
    weights = load_file(model / "model.safetensors")
    for name in weights:
        if name.endswith("layer.0.output.LayerNorm.weight"):
            weights[name] = weights[name] * np.float32(4)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def widths(bundle: Bundle) -> dict[str, float]:
    """What each activation's 255 steps span in the graph."""
    graph = onnx.load(bundle.root / "graphs" / "encoder.int8.onnx").graph
    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    return {
        node.name.removesuffix("/rounded"): 255 * float(constants[node.input[1]])
        for node in graph.node
        if node.op_type == "QuantizeLinear"
    }


def of_ranges(calibration: dict[str, dict[str, list[float]]]) -> dict[str, float]:
    return {name: max(high, 0.0) - min(low, 0.0) for name, (low, high) in calibration["ranges"].items()}


def test_a_build_of_changed_weights_measures_its_own_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA/TensorRT#3137: ranges of the weights before were taken from the cache without a word."""
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "cache"))
    model, texts, kept = (
        tiny.checkpoint(tmp_path / "model"),
        tmp_path / "texts.txt",
        tmp_path / "cache/calibration",
    )
    rng = np.random.default_rng(0)
    texts.write_text("\n".join(" ".join(rng.choice(tiny.WORDS, size=int(size))) for size in range(2, 18)))
    before = built(model, texts, tmp_path / "before")
    (first,) = kept.iterdir()
    trained_on(model)
    after = built(model, texts, tmp_path / "after")
    (second,) = set(kept.iterdir()) - {first}
    found = [json.loads(path.read_text()) for path in (first, second)]
    assert [each["weights"] for each in found] == [bundle.manifest.model.digest for bundle in (before, after)]
    assert found[0]["data"] == found[1]["data"]
    assert before.verified
    assert after.verified
    for bundle, calibration in zip((before, after), found, strict=True):
        expected = of_ranges(calibration)
        assert widths(bundle) == pytest.approx({name: expected[name] for name in widths(bundle)}, rel=1e-4)
    one = "encoder.layer.1.attention.output.dense/MatMul/input"  # what attention gives is not smoothed
    assert widths(after)[one] > 2 * widths(before)[one]
