"""Passes in a row: what fails is named, and what comes out is valid ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import pytest
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError, PreconditionError

from alula.core.errors import CompileError, InputError
from alula.graphs import passes_for, rewrite

SHAPE = ("batch", 8)


class Faulty(InPlacePass):
    """Fails where it is told to."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def requires(self, model: ir.Model) -> None:
        if self.where == "requires":
            raise PreconditionError("the graph is blue")

    def call(self, model: ir.Model) -> PassResult:
        if self.where == "call":
            raise RuntimeError("a wheel came off")
        if self.where == "invalid":
            next(iter(model.graph)).op_type = "NoSuchOperator"
        return PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        if self.where == "ensures":
            raise PostconditionError("it is still blue")


@pytest.fixture
def model(grow: Callable[..., ir.Model]) -> ir.Model:
    return grow(lambda b, x: b.op("Relu", x), SHAPE, SHAPE)


@pytest.mark.parametrize(
    ("where", "kind", "message"),
    [
        ("requires", InputError, "Faulty cannot take this graph: the graph is blue"),
        ("call", CompileError, "Faulty failed: a wheel came off"),
        ("ensures", CompileError, "Faulty did not do what it promises: it is still blue"),
        ("invalid", CompileError, "the rewritten graph is not valid ONNX: .*NoSuchOperator"),
    ],
)
def test_a_failure_names_the_pass_and_the_reason(
    where: str, kind: type[Exception], message: str, model: ir.Model
) -> None:
    with pytest.raises(kind, match=message):
        rewrite(model, [Faulty("nowhere"), Faulty(where)])


def test_no_passes_give_an_equal_model(model: ir.Model) -> None:
    assert ir.to_proto(rewrite(model, ())) == ir.to_proto(model)


def test_engines_that_do_not_read_graphs_need_no_passes() -> None:
    assert passes_for("fake", "fp32") == ()
    assert passes_for("torch", "fp32") == ()


def test_a_precision_that_an_engine_does_not_offer_is_refused() -> None:
    with pytest.raises(InputError, match=r"engine 'onnxruntime' offers fp32, fp16, .*, not 'bf16'"):
        passes_for("onnxruntime", "bf16")


def test_identities_go_and_outputs_keep_their_names(grow: Callable[..., ir.Model]) -> None:
    def twice(b: Any, x: ir.Value) -> Any:
        return b.op("Identity", b.op("Relu", b.op("Identity", x)))

    plain = rewrite(grow(twice, SHAPE, SHAPE), passes_for("openvino", "fp32"))
    assert [node.op_type for node in plain.graph] == ["Relu"]
    assert [value.name for value in plain.graph.outputs] == ["y"]
