"""Attention written out equals the operator itself as ONNX Runtime computes it, and PyTorch where that differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from alula.core.errors import InputError
from alula.graphs import rewrite
from alula.graphs.passes import attention as module
from alula.graphs.passes.attention import DecomposeAttention, heads_of

Floats: TypeAlias = NDArray[np.float32]
Feeds: TypeAlias = dict[str, NDArray[Any]]

BATCH, LENGTH, HEADS, SIZE = 2, 8, 4, 16


def random(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def attention(inputs: dict[str, ir.Value], opset: int = 23, **attributes: float) -> ir.Model:
    """A graph of one Attention over the given inputs, in their order."""
    names = ("q", "k", "v", "mask", "past_key", "past_value")
    given: Sequence[ir.Value | None] = [inputs.get(name) for name in names]
    while given and given[-1] is None:
        given = given[:-1]
    node = ir.node("Attention", given, attributes=attributes, name="attention")
    for number, output in enumerate(node.outputs):
        output.name, output.dtype = f"y{number}", ir.DataType.FLOAT
        output.shape = ir.Shape(
            ["b", "s", "t"] if len(inputs["q"].shape or ()) == 3 else ["b", "h", "s", "d"]
        )
    graph = ir.Graph(
        list(inputs.values()), node.outputs, nodes=[node], opset_imports={"": opset}, name="main"
    )
    return ir.Model(graph, ir_version=10)


def float_input(name: str, *shape: int | str) -> ir.Value:
    return ir.val(name, dtype=ir.DataType.FLOAT, shape=shape)


def heads_in_front(key_heads: int = HEADS) -> dict[str, ir.Value]:
    return {
        "q": float_input("q", "b", HEADS, "s", SIZE),
        "k": float_input("k", "b", key_heads, "t", SIZE),
        "v": float_input("v", "b", key_heads, "t", SIZE),
    }


def packed(key_heads: int = HEADS) -> dict[str, ir.Value]:
    return {
        "q": float_input("q", "b", "s", HEADS * SIZE),
        "k": float_input("k", "b", "t", key_heads * SIZE),
        "v": float_input("v", "b", "t", key_heads * SIZE),
    }


def run(model: ir.Model, feeds: Feeds) -> Floats:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    serialized = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
    result: Floats = session.run(None, feeds)[0]
    return result


def feeds_for(inputs: dict[str, ir.Value], batch: int, length: int, keys: int) -> Feeds:
    sizes = {"b": batch, "s": length, "t": keys}
    shapes = {name: [sizes.get(str(d), d) for d in value.shape or ()] for name, value in inputs.items()}
    return {
        name: random(*[int(str(size)) for size in shape], seed=seed)
        for seed, (name, shape) in enumerate(shapes.items())
    }


def eager(feeds: Feeds) -> Floats:
    q, k, v, mask = (torch.from_numpy(feeds[name]) for name in ("q", "k", "v", "mask"))
    result: Floats = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).numpy()
    return result


def op_types(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph.all_nodes()]


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize(
    ("form", "key_heads", "attributes"),
    [
        (heads_in_front, HEADS, {}),
        (heads_in_front, 2, {}),
        (heads_in_front, 1, {"scale": 0.3}),
        (heads_in_front, HEADS, {"is_causal": 1}),
        (packed, HEADS, {"q_num_heads": HEADS, "kv_num_heads": HEADS}),
        (packed, 2, {"q_num_heads": HEADS, "kv_num_heads": 2, "is_causal": 1}),
        (packed, HEADS, {"q_num_heads": HEADS, "kv_num_heads": HEADS, "softcap": 2.0}),
    ],
)
def test_every_form_equals_the_operator_for_all_sizes(
    form: Callable[[int], dict[str, ir.Value]],
    key_heads: int,
    attributes: dict[str, float],
    opset: int,
) -> None:
    inputs = form(key_heads)
    model = attention(inputs, opset, **attributes)
    plain = rewrite(model, [DecomposeAttention()])
    assert "Attention" not in op_types(plain)
    for batch, length in [(1, 1), (2, 8), (3, 5)]:
        feeds = feeds_for(inputs, batch, length, length)
        np.testing.assert_allclose(run(plain, feeds), run(model, feeds), atol=2e-6)


def test_an_additive_mask_is_added_without_where_and_the_graph_keeps_its_output_name() -> None:
    inputs = packed() | {"mask": float_input("mask", "b", 1, "s", "t")}
    model = attention(inputs, q_num_heads=HEADS, kv_num_heads=HEADS)
    plain = rewrite(model, [DecomposeAttention()])
    feeds = feeds_for(inputs, 3, 7, 7)
    feeds["mask"] = np.where(np.arange(7) < np.array([7, 3, 1])[:, None, None, None], 0.0, -1e9).astype(
        np.float32
    )
    feeds["mask"] = np.broadcast_to(feeds["mask"], (3, 1, 7, 7)).copy()
    assert "Where" not in op_types(plain)
    assert [value.name for value in plain.graph.outputs] == ["y0"]
    np.testing.assert_allclose(run(plain, feeds), run(model, feeds), atol=2e-6)


@pytest.mark.parametrize("rank", [2, 4])
def test_a_row_masked_by_a_boolean_mask_gives_zeros_as_in_pytorch(rank: int) -> None:
    """The report microsoft/onnxscript#2479: NaN in ONNX where PyTorch gives zeros."""
    shape = ("s", "t") if rank == 2 else ("b", 1, "s", "t")
    inputs = heads_in_front() | {"mask": ir.val("mask", dtype=ir.DataType.BOOL, shape=shape)}
    plain = rewrite(attention(inputs), [DecomposeAttention()])
    feeds = feeds_for(inputs, BATCH, LENGTH, LENGTH)
    mask = random(*feeds["mask"].shape, seed=9) > 0
    mask[..., 3, :] = False
    feeds["mask"] = mask
    expected = eager(feeds)
    got = run(plain, feeds)
    assert not expected[:, :, 3].any()
    assert not got[:, :, 3].any()
    np.testing.assert_allclose(got, expected, atol=2e-6)


def test_a_row_masked_by_minus_infinity_gives_zeros_too() -> None:
    inputs = heads_in_front() | {"mask": float_input("mask", "b", 1, "s", "t")}
    plain = rewrite(attention(inputs), [DecomposeAttention()])
    feeds = feeds_for(inputs, BATCH, LENGTH, LENGTH)
    feeds["mask"][0, 0, 2] = -np.inf
    feeds["mask"][1, 0, 4, ::2] = -np.inf
    expected = eager(feeds)
    np.testing.assert_allclose(run(plain, feeds), expected, atol=2e-6)


def test_causal_and_boolean_masks_intersect() -> None:
    inputs = heads_in_front() | {"mask": ir.val("mask", dtype=ir.DataType.BOOL, shape=("s", "t"))}
    plain = rewrite(attention(inputs, is_causal=1), [DecomposeAttention()])
    feeds = feeds_for(inputs, BATCH, LENGTH, LENGTH)
    feeds["mask"] = np.tri(LENGTH, k=-1) == 0  # nothing before the query itself
    np.testing.assert_allclose(run(plain, feeds), feeds["v"], atol=2e-6)


def linear(source: ir.Value, weight: ir.Value, bias: ir.Value) -> list[ir.Node]:
    product = ir.node("MatMul", [source, weight])
    return [product, ir.node("Add", [product.outputs[0], bias])]


def projected(*, shared: bool = False) -> ir.Model:
    """Attention whose query comes from a linear; `shared` lets a second reader see that query."""
    x = float_input("x", "b", "s", 8)
    weight = ir.val("w", const_value=ir.tensor(random(8, 8), name="w"))
    bias = ir.val("bias", const_value=ir.tensor(random(8, seed=1), name="bias"))
    nodes = linear(x, weight, bias)
    query = nodes[-1].outputs[0]
    key = query if shared else x
    nodes.append(ir.node("Attention", [query, key, x], attributes={"q_num_heads": 2, "kv_num_heads": 2}))
    output = nodes[-1].outputs[0]
    output.name, output.dtype, output.shape = "y", ir.DataType.FLOAT, ir.Shape(["b", "s", 8])
    graph = ir.Graph(
        [x], [output], nodes=nodes, initializers=[weight, bias], opset_imports={"": 23}, name="main"
    )
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize("shared", [False, True])
def test_the_scale_goes_into_the_weights_of_a_query_that_nobody_else_reads(*, shared: bool) -> None:
    model = projected(shared=shared)
    plain = rewrite(model, [DecomposeAttention()])
    feeds = {"x": random(2, 5, 8, seed=2)}
    assert ("Mul" in op_types(plain)) == shared
    assert ("w" in plain.graph.initializers) == shared
    np.testing.assert_allclose(run(plain, feeds), run(model, feeds), atol=2e-6)


def test_the_model_that_was_given_stays_as_it_was() -> None:
    model = projected()
    before = ir.to_proto(model).SerializeToString()
    rewrite(model, [DecomposeAttention()])
    assert ir.to_proto(model).SerializeToString() == before


def test_a_cache_is_refused_by_name() -> None:
    inputs = heads_in_front() | {
        "past_key": float_input("past_key", "b", HEADS, "p", SIZE),
        "past_value": float_input("past_value", "b", HEADS, "p", SIZE),
    }
    with pytest.raises(
        InputError, match=r"DecomposeAttention .* attention: Attention with past_key is not supp"
    ):
        rewrite(attention(inputs), [DecomposeAttention()])


def test_unknown_head_counts_are_refused() -> None:
    inputs = heads_in_front() | {"k": float_input("k", "b", "heads", "t", SIZE)}
    with pytest.raises(InputError, match="head counts of Q and K must be known and divide, not 4 and 0"):
        rewrite(attention(inputs), [DecomposeAttention()])


# Some heads at a time.


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("most", "softmaxes"), [(3, 2), (2, 2), (1, 4), (0, 4)])
def test_some_heads_at_a_time_are_the_same_attention(
    monkeypatch: pytest.MonkeyPatch, most: int, softmaxes: int, late: bool
) -> None:
    """Three of four and one, two and two, one by one, and one by one where even that is more than is wanted."""
    monkeypatch.setattr(module, "MOST_SCORES", most * 8 * 8)
    model = attention(packed(), q_num_heads=HEADS, kv_num_heads=HEADS)
    feeds = {name: random(BATCH, 7, HEADS * SIZE, seed=at) for at, name in enumerate("qkv")}
    cut = rewrite(model, [DecomposeAttention(late=late, longest=8)])
    assert [node.op_type for node in cut.graph].count("Softmax") == softmaxes
    expected, found = run(model, feeds), run(cut, feeds)
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_heads_whose_queries_are_masked_or_few_are_taken_at_once() -> None:
    causal = attention(packed(), q_num_heads=HEADS, kv_num_heads=HEADS, is_causal=1)
    whole = attention(packed(), q_num_heads=HEADS, kv_num_heads=HEADS)
    for model, longest in ((causal, 1 << 20), (whole, 1 << 14), (whole, 0)):
        kinds = [node.op_type for node in rewrite(model, [DecomposeAttention(longest=longest)]).graph]
        assert kinds.count("Softmax") == 1
    [node] = attention(packed(), q_num_heads=16, kv_num_heads=16).graph
    assert [heads_of(node, patches) for patches in (80 * 80, 128 * 128, 128 * 176, 176 * 176)] == [
        16,
        4,
        2,
        1,
    ]
