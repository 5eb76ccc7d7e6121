"""Linears that read the same become one: what is computed stays, and who reads elsewhere stays alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from alula.graphs import rewrite
from alula.graphs.passes.merge import MergeLinears

Floats = NDArray[np.float32]
Runner = Callable[[ir.Model, Mapping[str, Any]], list[Floats]]
Grower = Callable[..., ir.Model]
X = np.random.default_rng(3).standard_normal((2, 4, 6)).astype(np.float32)


def weight(columns: int) -> Floats:
    found: Floats = np.random.default_rng(columns).standard_normal((6, columns)).astype(np.float32)
    return found


def several(b: Any, x: ir.Value) -> Any:
    """Three linears of one input, of unlike widths; two of another; what they give is told apart by its order."""
    parts = [b.op("MatMul", x, b.weight(f"first{columns}", weight(columns))) for columns in (3, 1, 2)]
    y = b.op("Relu", b.op("Concat", *parts, axis=-1))
    one, other = (b.op("MatMul", y, b.weight(f"second{columns}", weight(columns))) for columns in (5, 4))
    return b.op("Concat", one, other, axis=-1)


@pytest.fixture
def model(grow: Grower) -> ir.Model:
    return grow(several, ("batch", "length", 6), ("batch", "length", 9))


def kinds(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


@pytest.mark.parametrize(("least", "products"), [(2, 2), (3, 3), (4, 5)])
def test_the_same_is_computed_in_fewer_products(
    least: int, products: int, model: ir.Model, run_graph: Runner
) -> None:
    (expected,) = run_graph(model, {"x": X})
    merged = rewrite(model, [MergeLinears(least=least)])
    assert kinds(merged)["MatMul"] == products
    (given,) = run_graph(merged, {"x": X})
    np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-6)
    assert len(merged.graph.initializers) >= products
    assert kinds(model)["MatMul"] == 5


def test_a_weight_that_others_read_and_a_result_of_the_graph_stay(grow: Grower, run_graph: Runner) -> None:
    def shared(b: Any, x: ir.Value) -> Any:
        both = b.weight("both", weight(6))
        one, other = b.op("MatMul", x, both), b.op("MatMul", b.op("Relu", x), both)
        return b.op(
            "MatMul", b.op("Add", b.op("MatMul", x, b.weight("own", weight(6))), one), other_way(b, other)
        )

    def other_way(b: Any, value: ir.Value) -> ir.Value:
        turned: ir.Value = b.op("Transpose", value, perm=[0, 2, 1])
        return turned

    model = grow(shared, ("batch", "length", 6), ("batch", "length", "other"))
    merged = rewrite(model, [MergeLinears()])
    assert kinds(merged) == kinds(model)
    np.testing.assert_array_equal(run_graph(merged, {"x": X})[0], run_graph(model, {"x": X})[0])
