"""fp16 on a real model: near fp32 in ONNX Runtime, and compiled by TensorRT-RTX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from rtx import compile_on_cpu

from alula import families, graphs
from alula.codecs import TextCodec
from alula.core.engine import Plan, Session
from alula.core.profile import Profile, Range
from alula.engines import backend
from alula.graphs.half import fp16_passes
from alula.graphs.passes.choice import HALF, WHOLE_ATTENTION, Policy
from alula.verify.texts import texts_for

PROFILE = Profile({"batch": Range(1, 1, 16), "length": Range(1, 32, 256)})
CASTS_OF_A_LAYER = 14

Feeds = Mapping[str, NDArray[Any]]


@pytest.fixture(scope="module")
def checkpoint(minilm_folder: Path) -> families.Checkpoint:
    return families.open_checkpoint(str(minilm_folder))


@pytest.fixture(scope="module")
def model(checkpoint: families.Checkpoint) -> ir.Model:
    return families.write(checkpoint, families.describe(checkpoint, "embeddings"), "encoder")


@pytest.fixture(scope="module")
def batches(checkpoint: families.Checkpoint) -> tuple[Feeds, ...]:
    """The same texts together and in twos, each padded to the longest row."""
    codec = TextCodec.open(checkpoint.root, families.describe(checkpoint, "embeddings"))
    rows = [codec.encode(*text) for text in texts_for("embeddings")[::2]]
    lengths = [len(row.ids) for row in rows]
    assert min(lengths) < 5
    assert max(lengths) > 100
    return (codec.collate(rows), *(codec.collate(rows[at : at + 2]) for at in range(0, len(rows), 2)))


@contextmanager
def opened(model: ir.Model, precision: str, at: Path) -> Iterator[Session]:
    saved = graphs.save(model, at / f"{precision}.onnx", precision)
    engine = backend("onnxruntime")
    made = engine.compile(saved, Plan(profile=PROFILE), at / f"{precision}.engine")
    with closing(engine.open(made, threads=2)) as session:
        yield session


@pytest.fixture(scope="module")
def full(model: ir.Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with opened(model, "fp32", tmp_path_factory.mktemp("full")) as session:
        yield session


@pytest.fixture(scope="module")
def keep(
    model: ir.Model, batches: tuple[Feeds, ...], tmp_path_factory: pytest.TempPathFactory
) -> frozenset[str]:
    """What these texts measure beyond fp16."""
    observed, names = graphs.observe_magnitudes(model)
    largest = dict.fromkeys(names, 0.0)
    with opened(observed, "fp32", tmp_path_factory.mktemp("observed")) as session:
        for feeds in batches:
            outputs = session.run(feeds)
            largest = {name: max(seen, float(outputs[name])) for name, seen in largest.items()}
    assert 100 < max(largest.values()) < 1000
    return graphs.beyond_fp16(model, largest)


def test_nothing_of_minilm_is_beyond_fp16(keep: frozenset[str], model: ir.Model) -> None:
    assert keep == frozenset()
    assert len(graphs.half_layers(model)) == 36
    assert sum(graphs.half_layers(model).values()) == 6 * (4 * 384 * 384 + 2 * 384 * 1536)


# Measured, worst and mean of 1 - cosine over 16 texts: 6.6e-7 and 3.6e-7; attention whole 6.0e-7 and 3.6e-7; the
# residual sums in fp16 as well 8.3e-7 and 5.4e-7. Without the rounding 3.6e-7 and 1.2e-7: ONNX Runtime's own casts.
@pytest.mark.parametrize("policy", [HALF, WHOLE_ATTENTION], ids=["written out", "whole"])
def test_minilm_in_fp16_is_near_fp32_for_ragged_texts(
    policy: Policy,
    keep: frozenset[str],
    model: ir.Model,
    full: Session,
    batches: tuple[Feeds, ...],
    tmp_path: Path,
) -> None:
    half = graphs.rewrite(model, graphs.passes_for("onnxruntime", "fp16", policy=policy, keep=keep))
    with opened(half, "fp16", tmp_path) as session:
        assert session.inputs == full.inputs
        assert session.outputs == full.outputs
        apart = []
        for feeds in batches:
            expected, got = full.run(feeds)["embedding"], session.run(feeds)["embedding"]
            assert got.dtype == np.float32
            assert not np.array_equal(got, expected)
            apart += list(1 - (expected.astype(np.float64) * got.astype(np.float64)).sum(-1))
    assert len(apart) == 16
    assert max(apart) < 3e-6
    assert np.mean(apart) < 1e-6


def test_half_the_bytes_and_few_casts(model: ir.Model, tmp_path: Path) -> None:
    half = graphs.rewrite(model, fp16_passes())
    graphs.save(model, tmp_path / "full.onnx", "fp32")
    graphs.save(half, tmp_path / "half.onnx", "fp16")
    sizes = {
        name: sum(path.stat().st_size for path in tmp_path.glob(f"{name}.onnx*")) for name in ("full", "half")
    }
    assert sizes["half"] < 0.51 * sizes["full"]
    assert sum(node.op_type == "Cast" for node in half.graph) < 6 * CASTS_OF_A_LAYER


@pytest.mark.parametrize("policy", [HALF, WHOLE_ATTENTION], ids=["written out", "whole"])
def test_minilm_in_fp16_is_compiled_by_tensorrt_rtx(policy: Policy, model: ir.Model, tmp_path: Path) -> None:
    saved = graphs.save(graphs.rewrite(model, fp16_passes(policy)), tmp_path / "half.onnx", "fp16")
    shapes = {given.name: ((1, 1), (8, 128), (32, 256)) for given in saved.inputs}
    engine = compile_on_cpu(saved.path, shapes)
    weights = 2 * sum(graphs.half_layers(model).values())
    assert weights < len(engine) < 60e6
