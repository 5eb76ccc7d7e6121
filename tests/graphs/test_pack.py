"""Weights in four and eight bits: what graphs compute with, what the engines make of them, what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import openvino
import pytest
import tiny_t5
from numpy.typing import NDArray

from alula.core.errors import CompileError, InputError
from alula.engines.openvino import settings
from alula.graphs import layers, load, pack, rewrite, save
from alula.graphs.passes.blocks import Zeros, grid_of
from alula.graphs.passes.opset import LowerOpset
from alula.graphs.passes.pack import Packing, PackWeights

SHAPE = ("batch", "length", 96)
HALF = np.full(80, 0.5, np.float32)
# Of the length of what fp32 gives, activations rounded to eight bits where the engine does that.
NEAR = 0.012
ENGINES = ("onnxruntime", "openvino")
PRECISIONS = ("int8-weights", "int4-weights")
Floats = NDArray[np.float32]
Runner = Callable[[ir.Model, Mapping[str, Any]], list[Floats]]
Grower = Callable[..., ir.Model]


def matrix(rows: int, columns: int, seed: int) -> Floats:
    found: Floats = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    return found / np.float32(rows**0.5)


def three(b: Any, x: ir.Value) -> Any:
    """Two linears, the second of 80 rows, which are no whole blocks of 32, a norm, and a last linear."""
    # A Relu right behind a product keeps ONNX Runtime from MatMulNBits; a bias in between does not.
    y = b.op("Add", b.op("MatMul", x, b.weight("one", matrix(96, 80, 0))), b.weight("half", HALF))
    y = b.op("MatMul", b.op("Relu", y), b.weight("other", matrix(80, 96, 1)))
    y = b.op("RMSNormalization", y, b.weight("norm", np.ones(96, np.float32)))
    return b.op("MatMul", y, b.weight("last", matrix(96, 40, 2)))


@pytest.fixture
def model(grow: Grower) -> ir.Model:
    return grow(three, SHAPE, ("batch", "length", 40))


@pytest.fixture
def x() -> Floats:
    return np.random.default_rng(1).standard_normal((2, 5, 96)).astype(np.float32)


def by_hand(x: Floats, forms: Mapping[str, tuple[int, int, Zeros]]) -> Floats:
    """What `three` gives with each weight in so many bits, blocks and kind of zeros."""
    shapes = {"one": (96, 80, 0), "other": (80, 96, 1), "last": (96, 40, 2)}
    one, other, last = (
        grid_of(matrix(*shapes[name]), *forms[name]).restored(matrix(*shapes[name])) for name in shapes
    )
    y = np.maximum(x @ one + HALF, 0) @ other
    given: Floats = y / np.sqrt(np.mean(y**2, axis=-1, keepdims=True) + 1e-5) @ last
    return given


@pytest.mark.parametrize(
    ("engine", "precision", "one", "other"),
    [
        ("onnxruntime", "int4-weights", (4, 32, "whole"), (4, 16, "whole")),
        ("openvino", "int4-weights", (4, 32, "real"), (4, 16, "real")),
        ("onnxruntime", "int8-weights", (8, 32, "whole"), (8, 16, "whole")),
        ("openvino", "int8-weights", (8, 32, "none"), (8, 16, "none")),
    ],
)
def test_the_graph_computes_with_what_is_restored(
    engine: str, precision: str, one: Any, other: Any, model: ir.Model, x: Floats, run_graph: Runner
) -> None:
    wanted = by_hand(x, {"one": one, "other": other, "last": (8, 32, "none")})
    (given,) = run_graph(pack(model, engine, precision), {"x": x})
    np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-4)
    (plain,) = run_graph(model, {"x": x})
    assert 0 < np.abs(given - plain).max() < 0.3 * np.abs(plain).max()


def test_zeros_apart_are_the_zeros_that_are_written_out(
    model: ir.Model, x: Floats, run_graph: Runner
) -> None:
    packing = Packing(bits=4, blocks=(32, 16), zeros="real", apart=True)
    packed = rewrite(model, [PackWeights(packing)])
    forms: dict[str, tuple[int, int, Zeros]] = {"one": (4, 32, "real"), "other": (4, 16, "real")}
    wanted = by_hand(x, {**forms, "last": (8, 32, "none")})
    (given,) = run_graph(packed, {"x": x})
    # They are kept in fp16.
    assert far(given, wanted) < 5e-4
    kinds = Counter(node.op_type for node in packed.graph)
    assert (kinds["ReduceSum"], kinds["Sub"], kinds["DequantizeLinear"]) == (2, 0, 3)
    numbers = [each for each in packed.graph.initializers.values() if each.dtype == ir.DataType.INT4]
    assert [tuple(each.shape or ()) for each in numbers] == [(96, 80), (80, 96)]


def test_a_scale_off_by_two_is_seen(model: ir.Model, x: Floats, run_graph: Runner) -> None:
    wrong = pack(model, "onnxruntime", "int4-weights")
    node = [node for node in wrong.graph if node.op_type == "DequantizeLinear"][-1]
    twice = ir.node("Add", [node.inputs[1], node.inputs[1]], name="twice")
    wrong.graph.insert_before(node, twice)
    node.replace_input_with(1, twice.outputs[0])
    (plain,) = run_graph(model, {"x": x})
    assert np.abs(run_graph(wrong, {"x": x})[0] - plain).max() > 0.3 * np.abs(plain).max()


def optimised(path: Path, to: Path) -> tuple[onnxruntime.InferenceSession, Counter[str]]:
    """A session of ONNX Runtime, and the operators that it runs."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(to)
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session, Counter(node.op_type for node in onnx.load(to, load_external_data=False).graph.node)


def far(given: Floats, wanted: Floats) -> float:
    return float(np.linalg.norm(given - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_onnxruntime_has_a_kernel_for_every_product(
    precision: str, model: ir.Model, x: Floats, run_graph: Runner, tmp_path: Path
) -> None:
    saved = save(pack(model, "onnxruntime", precision), tmp_path / "packed.onnx", precision)
    session, kinds = optimised(saved.path, tmp_path / "optimised.onnx")
    assert (kinds["MatMulNBits"], kinds["MatMul"], kinds["DequantizeLinear"]) == (3, 0, 0)
    (wanted,) = run_graph(load(saved.path), {"x": x})
    assert far(session.run(None, {"x": x})[0], wanted) < NEAR


@pytest.mark.parametrize("precision", PRECISIONS)
def test_openvino_keeps_them_packed(
    precision: str, model: ir.Model, x: Floats, run_graph: Runner, tmp_path: Path
) -> None:
    saved = save(pack(model, "openvino", precision), tmp_path / "packed.onnx", precision)
    compiled = openvino.Core().compile_model(saved.path, "CPU", settings(threads=1))
    told = [node.get_rt_info()["layerType"].astype(str) for node in compiled.get_runtime_model().get_ops()]
    # Nothing restores them beside the three products and the norm.
    assert sorted(set(told) - {"Const", "Input", "Output", "Transpose"}) == ["FullyConnected", "RMS"]
    (wanted,) = run_graph(load(saved.path), {"x": x})
    assert far(compiled({0: x})[0], wanted) < NEAR


def test_files_are_small(model: ir.Model, tmp_path: Path) -> None:
    whole = save(model, tmp_path / "fp32.onnx", "fp32").path.stat().st_size
    sizes = {
        (engine, precision): save(pack(model, engine, precision), tmp_path / "packed.onnx", precision)
        .path.stat()
        .st_size
        for engine in ENGINES
        for precision in PRECISIONS
    }
    assert sizes["onnxruntime", "int4-weights"] < whole / 3
    assert sizes["openvino", "int4-weights"] < whole / 2.5
    assert sizes["onnxruntime", "int8-weights"] < whole / 2.2


def test_kept_linears_are_as_they_were(model: ir.Model) -> None:
    first, *others = layers(model)
    graph = pack(model, "onnxruntime", "int4-weights", keep=frozenset({first}))
    assert layers(graph) == (first,)
    stored = {value.name for value in graph.graph.initializers.values() if value.dtype == ir.DataType.UINT4}
    assert stored == {"other_uint4", "other_zeros"}
    assert set(layers(model)) == {first, *others}


def test_a_linear_that_no_block_divides_has_a_scale_for_each_column(grow: Grower) -> None:
    def build(b: Any, x: ir.Value) -> Any:
        y = b.op(
            "MatMul",
            b.op("MatMul", x, b.weight("one", matrix(96, 20, 0))),
            b.weight("two", matrix(20, 96, 1)),
        )
        return b.op("RMSNormalization", y, b.weight("norm", np.ones(96, np.float32)))

    graph = pack(grow(build, SHAPE, SHAPE), "onnxruntime", "int4-weights").graph
    types = {name: value.dtype for name, value in graph.initializers.items()}
    assert (types["one_uint4"], types["two_int8"]) == (ir.DataType.UINT4, ir.DataType.INT8)
    assert graph.initializers["two_scales"].shape == (96,)


VOCABULARY, WIDTH = 1200, 64


def tied(b: Any, x: ir.Value) -> Any:
    """Rows looked up by what `x` gives, rotated by tables of positions, and the table again as the head."""
    table = b.weight("table", matrix(VOCABULARY, WIDTH, 3))
    cosines, sines = (b.weight(name, matrix(4096, 16, seed)) for name, seed in (("cosines", 4), ("sines", 5)))
    ids = b.op("Cast", b.op("ReduceSum", x, b.ints(-1), keepdims=0), to=int(ir.DataType.INT64))
    y = b.op("RMSNormalization", b.op("Gather", table, ids), b.weight("norm", np.ones(WIDTH, np.float32)))
    y = b.op("MatMul", y, b.weight("query", matrix(WIDTH, WIDTH, 6)))
    turns = [b.op("Gather", each, ids) for each in (cosines, sines)]
    y = b.op("RotaryEmbedding", y, *turns, num_heads=2)
    y = b.op("RMSNormalization", y, b.weight("norm", np.ones(WIDTH, np.float32)))
    return b.op("MatMul", y, b.op("Transpose", table, perm=[1, 0]))


@pytest.fixture
def writer(grow: Grower) -> ir.Model:
    return grow(tied, ("batch", "length", 3), ("batch", "length", VOCABULARY))


def ids_of(x: Floats) -> dict[str, Floats]:
    return {"x": np.random.default_rng(0).integers(0, 300, (*x.shape[:2], 3)).astype(np.float32)}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_table_that_is_the_head_too_is_stored_once_in_eight_bits(
    engine: str, precision: str, writer: ir.Model, x: Floats, run_graph: Runner, tmp_path: Path
) -> None:
    packed = pack(writer, engine, precision)
    large = {
        name: value.dtype
        for name, value in packed.graph.initializers.items()
        if value.const_value is not None and value.const_value.size >= VOCABULARY * WIDTH / 2
    }
    assert large.pop("table_int8") == ir.DataType.INT8
    # Of positions every digit counts.
    assert large == {"cosines": ir.DataType.FLOAT, "sines": ir.DataType.FLOAT}
    feeds = ids_of(x)
    (given,), (plain,) = run_graph(packed, feeds), run_graph(writer, feeds)
    assert far(given, plain) < (0.02 if precision == "int8-weights" else 0.15)
    saved = save(packed, tmp_path / "packed.onnx", precision)
    if engine == "openvino":
        compiled = openvino.Core().compile_model(saved.path, "CPU", settings(threads=1))
        found = compiled(feeds)[0]
    else:
        session, kinds = optimised(saved.path, tmp_path / "optimised.onnx")
        assert (kinds["MatMulNBits"], kinds["MatMul"], kinds["DequantizeLinear"]) == (2, 0, 0)
        found = session.run(None, feeds)[0]
    assert far(found, given) < NEAR


def test_numbers_that_two_read_would_cost_onnxruntime_its_kernel(writer: ir.Model, tmp_path: Path) -> None:
    """Why the look-up turns the table: read as it is, the head would restore all of it at every step."""
    packed = pack(writer, "onnxruntime", "int8-weights")
    turn = next(node for node in packed.graph if node.op_type == "Transpose")
    [rows] = turn.outputs[0].consumers()
    rows.replace_input_with(0, turn.inputs[0])
    rows.attributes["axis"] = ir.AttrInt64("axis", 1)
    back = ir.node("Transpose", [rows.outputs[0]], {"perm": [1, 2, 0]}, name="back")
    rows.outputs[0].replace_all_uses_with(back.outputs[0])
    back.replace_input_with(0, rows.outputs[0])
    packed.graph.insert_after(rows, back)
    packed.graph.remove(turn, safe=True)
    saved = save(packed, tmp_path / "packed.onnx", "int8-weights")
    _, kinds = optimised(saved.path, tmp_path / "optimised.onnx")
    assert (kinds["DequantizeLinear"], kinds["MatMul"]) == (1, 1)


def test_a_table_that_nobody_multiplies_by_is_packed_by_row(grow: Grower, run_graph: Runner) -> None:
    def build(b: Any, x: ir.Value) -> Any:
        ids = b.op("Cast", b.op("ReduceSum", x, b.ints(-1), keepdims=0), to=int(ir.DataType.INT64))
        y = b.op("Gather", b.weight("table", matrix(VOCABULARY, WIDTH, 3)), ids)
        return b.op("MatMul", y, b.weight("last", matrix(WIDTH, 40, 2)))

    model = grow(build, ("batch", "length", 3), ("batch", "length", 40))
    packed = pack(model, "openvino", "int8-weights")
    assert packed.graph.initializers["table_int8"].shape == (VOCABULARY, WIDTH)
    feeds = {"x": np.random.default_rng(0).integers(0, 300, (2, 5, 3)).astype(np.float32)}
    assert far(run_graph(packed, feeds)[0], run_graph(model, feeds)[0]) < 0.01


def test_what_a_cache_keeps_is_not_the_last_linear(grow: Grower) -> None:
    """Keys and values leave the graph, and are read again in it."""
    model = grow(lambda b, x: b.op("MatMul", x, b.weight("key", matrix(96, 32, 0))), SHAPE, (*SHAPE[:2], 32))
    for name, dtype in (("y", "key_int8"), ("present.0.key", "key_uint4")):
        model.graph.outputs[0].name = name
        assert dtype in pack(model, "onnxruntime", "int4-weights").graph.initializers


def test_what_cannot_be_packed_is_refused(model: ir.Model, grow: Grower) -> None:
    with pytest.raises(InputError, match="no linear 'pooler' to keep; there are 3"):
        pack(model, "onnxruntime", "int4-weights", keep=frozenset({"pooler"}))
    with pytest.raises(InputError, match="there is no linear with a constant fp32 weight"):
        pack(grow(lambda b, x: b.op("Relu", x), SHAPE, SHAPE), "openvino", "int8-weights")
    with pytest.raises(InputError, match="opset 20 has no blocks of int4; expected 21 or later"):
        pack(rewrite(grow(two, SHAPE, SHAPE), [LowerOpset(20)]), "onnxruntime", "int4-weights")
    with pytest.raises(InputError, match="precision 'int8' stores no weights in few bits; int8-weights and"):
        pack(model, "onnxruntime", "int8")


def two(b: Any, x: ir.Value) -> Any:
    return b.op(
        "MatMul", b.op("MatMul", x, b.weight("one", matrix(96, 96, 0))), b.weight("two", matrix(96, 96, 1))
    )


def test_a_linear_left_is_a_fault_of_the_pass(model: ir.Model) -> None:
    class Idle(PackWeights):
        def call(self, model: ir.Model) -> Any:
            return ir.passes.PassResult(model, False)

    with pytest.raises(CompileError, match="Idle did not do what it promises: n0: not packed"):
        rewrite(model, [Idle(Packing(bits=8, blocks=()))])


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_of_a_decoder_that_reads_an_encoder_stays_in_onnxruntime(tied: bool, tmp_path: Path) -> None:
    tiny_t5.checkpoint(tmp_path, tied=tied, d_model=64, vocab_size=1100)
    decoder = tiny_t5.part(tmp_path, "decoder")
    for engine, kept in (("onnxruntime", 1), ("openvino", 0)):
        values = pack(decoder, engine, "int8-weights").graph.initializers.values()
        shapes = [tuple(each.shape or ()) for each in values if each.dtype == ir.DataType.FLOAT]
        assert sum({64, 1100} == {*shape} for shape in shapes) == kept
