"""Passes in a row over a copy of a model, checked at the end."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir
from onnx_ir.passes import InvariantError, PassBase, PassError, PreconditionError
from onnx_ir.passes.common import CheckerPass

from alula.core.errors import CompileError, InputError

Pass = PassBase


def rewrite(model: ir.Model, passes: Iterable[Pass]) -> ir.Model:
    """Apply the passes in order to a copy that shares the weights; `model` stays as it is."""
    rewritten = model.clone()
    for one in passes:
        rewritten = _apply(one, rewritten)
    _check(rewritten)
    return rewritten


def _apply(one: Pass, model: ir.Model) -> ir.Model:
    name = type(one).__name__
    try:
        return one(model).model
    except PreconditionError as error:
        raise InputError(f"{name} cannot take this graph: {_reason(error)}") from error
    except InvariantError as error:
        raise CompileError(f"{name} did not do what it promises: {_reason(error)}") from error
    except (PassError, ValueError, TypeError, RuntimeError, KeyError) as error:
        raise CompileError(f"{name} failed: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """The innermost message: onnx-ir wraps what a pass raised in words of its own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def _check(model: ir.Model) -> None:
    try:
        CheckerPass()(model)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        raise CompileError(f"the rewritten graph is not valid ONNX: {error}") from error
