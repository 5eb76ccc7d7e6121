"""The stream between layers multiplied by a power of two: nothing changes but its size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from alula.core.errors import InputError
from alula.graphs import half_policy, observe_magnitudes, rewrite, shrink, shrinkage
from alula.graphs.half import BEYOND
from alula.graphs.passes.shrink import ShrinkStream, stream_of

pytest.importorskip("transformers")
import tiny_decoders
import tiny_t5


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ir.Model]:
    folder = tmp_path_factory.mktemp("parts")
    tiny_t5.checkpoint(folder / "t5")
    made = {name: tiny_t5.part(folder / "t5", name) for name in tiny_t5.PARTS}
    for family in ("llama", "qwen2"):
        checkpoint = tiny_decoders.checkpoint(folder / family, family)
        made[family] = tiny_decoders.opened(folder / family, checkpoint).graph
    return made


def feeds_of(model: ir.Model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    sizes = {"batch": 2, "length": 5, "past": 3, "total": 8, "source": 4, "answers": 1}
    made = {}
    for value in model.graph.inputs:
        shape = [size if isinstance(size, int) else sizes[str(size)] for size in value.shape or ()]
        if str(value.name).endswith("mask"):
            made[str(value.name)] = np.ones(shape, np.int64)
        elif value.dtype == ir.DataType.INT64:
            made[str(value.name)] = rng.integers(0, 5, shape)
        else:
            made[str(value.name)] = rng.standard_normal(shape).astype(np.float32)
    return made


@pytest.mark.parametrize("name", ["llama", "qwen2", "encoder", "decoder"])
def test_no_bit_changes_behind_the_norms(name: str, parts: dict[str, ir.Model]) -> None:
    """Powers of two round nothing; qwen2's biases are multiplied too."""
    model = parts[name]
    given = feeds_of(model)
    before, after = (
        tiny_decoders.session_of(each).run(None, given) for each in (model, shrink(model, 2**-6))
    )
    for wanted, found in zip(before, after, strict=True):
        assert np.array_equal(wanted, found)


@pytest.mark.parametrize("name", ["llama", "encoder", "decoder"])
def test_the_stream_is_as_much_smaller(name: str, parts: dict[str, ir.Model]) -> None:
    model = parts[name]
    stream = stream_of(model)
    assert stream is not None
    given = feeds_of(model)

    def largest(model: ir.Model) -> float:
        measured, names = observe_magnitudes(model, half_policy("tensorrt", 17))
        wanted = [f"{value.name}/magnitude" for value in stream.values[1:] if value.producer() is not None]
        taken = [each for each in wanted if each in names]
        assert taken
        return max(float(each) for each in tiny_decoders.session_of(measured).run(taken, given))

    assert largest(shrink(model, 0.125)) == largest(model) / 8


def test_how_much_is_what_fp16_needs(parts: dict[str, ir.Model]) -> None:
    model = parts["llama"]
    stream = stream_of(model)
    assert stream is not None
    name = f"{stream.values[-2].name}/magnitude"
    assert shrinkage(model, {name: BEYOND}) == 1
    assert shrinkage(model, {name: BEYOND * 1.01}) == 1 / 2
    assert shrinkage(model, {name: BEYOND * 8}) == 1 / 8
    assert shrinkage(model, {name: float("inf")}) == 1, "what is lost already is not helped by it"
    assert shrinkage(parts["cross"], {name: BEYOND * 8}) == 1


def test_a_graph_without_such_a_stream_is_refused(parts: dict[str, ir.Model]) -> None:
    assert stream_of(parts["cross"]) is None
    with pytest.raises(InputError, match="no sums between layers that norms alone read"):
        rewrite(parts["cross"], [ShrinkStream(0.5)])


def test_a_stream_that_somebody_else_reads_is_none(parts: dict[str, ir.Model], tmp_path: Path) -> None:
    model = parts["llama"].clone()
    stream = stream_of(model)
    assert stream is not None
    model.graph.outputs.append(stream.values[1])
    assert stream_of(model) is None
