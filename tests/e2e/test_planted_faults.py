"""Faults planted in a real checkpoint: golden outputs, which need no torch, find each at either precision."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from alula import families, graphs
from alula.core.check import Check
from alula.core.engine import Plan, Session
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds
from alula.engines import backend
from alula.verify import compare, golden

PROFILE = Profile({"batch": Range(1, 4, 8), "length": Range(2, 32, 256)})
LONGEST = 80

Weights = dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"]


@contextmanager
def engine_of(checkpoint: Path, at: Path) -> Iterator[Session]:
    opened = families.open_checkpoint(str(checkpoint))
    model = families.write(opened, families.describe(opened), "encoder")
    onnxruntime = backend("onnxruntime")
    graph = graphs.save(
        graphs.rewrite(model, graphs.passes_for("onnxruntime", "fp32")), at / "encoder.onnx", "fp32"
    )
    compiled = onnxruntime.compile(graph, Plan(profile=PROFILE), at / "engine")
    with closing(onnxruntime.open(compiled, threads=2)) as session:
        yield session


def judged(original: Path, session: Session, precision: str) -> tuple[Check, ...]:
    """Compare with what ships for the original checkpoint, long texts aside."""
    spec = families.describe(families.open_checkpoint(str(original)))
    stored = golden.find(spec.digest)
    assert stored is not None
    kept = [
        (sample, outputs)
        for sample, outputs in zip(stored.samples, stored.outputs, strict=True)
        if sample.mask.shape[1] <= LONGEST
    ]
    samples, outputs = zip(*kept, strict=True)
    assert len(kept) >= 4
    return compare(outputs, session, samples, spec, precision, "golden")


def transposed(weights: Weights) -> None:
    name = "encoder.layer.3.attention.self.value.weight"
    weights[name] = np.ascontiguousarray(weights[name].T)


def one_nan(weights: Weights) -> None:
    weights["encoder.layer.5.output.LayerNorm.bias"][7] = np.nan


def key_for_query(weights: Weights) -> None:
    for layer in range(6):
        prefix = f"encoder.layer.{layer}.attention.self"
        weights[f"{prefix}.query.weight"] = weights[f"{prefix}.key.weight"].copy()


def positions_shifted(weights: Weights) -> None:
    name = "embeddings.position_embeddings.weight"
    weights[name] = np.roll(weights[name], 1, axis=0)


def last_layer_gone(weights: Weights) -> None:
    for name in [name for name in weights if name.startswith("encoder.layer.5.")]:
        del weights[name]


class MaskIgnored:
    """A session that treats padding as text."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.inputs, self.outputs = session.inputs, session.outputs

    def run(self, feeds: Feeds) -> Feeds:
        return self._session.run({**feeds, "attention_mask": np.ones_like(feeds["attention_mask"])})

    def close(self) -> None:
        self._session.close()


@pytest.fixture(scope="module")
def spoiled(minilm_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def make(change: Callable[[Weights], None] | None = None, **settings: object) -> Path:
        folder = tmp_path_factory.mktemp("spoiled") / "model"
        shutil.copytree(minilm_folder, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **settings}))
        if change:
            weights: Weights = load_file(folder / "model.safetensors")
            change(weights)
            save_file(weights, folder / "model.safetensors")
        return folder

    return make


@pytest.mark.parametrize("change", [transposed, one_nan, key_for_query, positions_shifted])
def test_a_changed_weight_is_found(
    change: Callable[[Weights], None],
    spoiled: Callable[..., Path],
    minilm_folder: Path,
    tmp_path: Path,
) -> None:
    folder = spoiled(change)
    assert golden.find(families.open_checkpoint(str(folder)).digest) is None
    with engine_of(folder, tmp_path) as session:
        for precision in ("fp32", "bf16"):
            assert not any(check.passed for check in judged(minilm_folder, session, precision))


def test_a_layer_that_is_left_out_is_found(
    spoiled: Callable[..., Path], minilm_folder: Path, tmp_path: Path
) -> None:
    with engine_of(spoiled(last_layer_gone, num_hidden_layers=5), tmp_path) as session:
        for precision in ("fp32", "bf16"):
            assert not any(check.passed for check in judged(minilm_folder, session, precision))


@pytest.mark.parametrize("settings", [{"hidden_act": "relu"}, {"num_attention_heads": 6}])
def test_a_setting_that_is_misread_is_found(
    settings: dict[str, object], spoiled: Callable[..., Path], minilm_folder: Path, tmp_path: Path
) -> None:
    with engine_of(spoiled(**settings), tmp_path) as session:
        for precision in ("fp32", "bf16"):
            assert not any(check.passed for check in judged(minilm_folder, session, precision))


def test_an_ignored_mask_is_found_and_the_sound_engine_passes(minilm_folder: Path, tmp_path: Path) -> None:
    with engine_of(minilm_folder, tmp_path) as session:
        assert all(check.passed for check in judged(minilm_folder, session, "fp32"))
        for precision in ("fp32", "bf16"):
            assert not any(check.passed for check in judged(minilm_folder, MaskIgnored(session), precision))
