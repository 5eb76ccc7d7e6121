"""A head that is the table of embeddings: the table is read as it lies, by both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from alula.graphs.passes.table import MultiplyByTable

Grow: TypeAlias = Callable[..., ir.Model]
Run: TypeAlias = Callable[[ir.Model, Mapping[str, NDArray[Any]]], list[NDArray[np.float32]]]

TOKENS, WIDE = 7, 4
TABLE = np.random.default_rng(0).standard_normal((TOKENS, WIDE)).astype(np.float32)


def tied(b: Any, x: ir.Value) -> Any:
    """Looks tokens up by the sum of x's rows, and multiplies both by the table."""
    table = b.weight("table", TABLE)
    ids = b.op("Cast", b.op("ReduceSum", x, b.weight("last", np.array([2], np.int64)), keepdims=0), to=7)
    rows = b.op("Add", x, b.op("Gather", table, ids))
    return b.op("MatMul", rows, b.op("Transpose", table, perm=[1, 0]))


def alone(b: Any, x: ir.Value) -> Any:
    """Nobody looks tokens up."""
    return b.op("MatMul", x, b.op("Transpose", b.weight("table", TABLE), perm=[1, 0]))


@pytest.fixture
def x() -> NDArray[np.float32]:
    return np.random.default_rng(1).uniform(0, 1, (3, 2, WIDE)).astype(np.float32)


def test_one_table_serves_both(grow: Grow, run_graph: Run, x: NDArray[np.float32]) -> None:
    model = grow(tied, ("batch", "length", WIDE), ("batch", "length", TOKENS))
    [expected] = run_graph(model, {"x": x})
    assert MultiplyByTable()(model).modified
    RemoveUnusedNodesPass()(model)
    [product] = [node for node in model.graph if node.op_type == "MatMul"]
    first = product.inputs[0]
    assert first is not None
    assert first.name == "table"
    assert {node.op_type for node in first.consumers()} == {"Gather", "MatMul"}
    [found] = run_graph(model, {"x": x})
    assert found.shape == (3, 2, TOKENS)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_a_table_that_nobody_looks_up_in_is_left(grow: Grow) -> None:
    model = grow(alone, ("batch", "length", WIDE), ("batch", "length", TOKENS))
    assert not MultiplyByTable()(model).modified
