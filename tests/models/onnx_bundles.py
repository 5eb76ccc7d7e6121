"""Bundles of ONNX files, built as a request for one says, and the file that most tests build."""

from __future__ import annotations

from pathlib import Path

import onnx
from tiny_onnx import model_of, node, numbers, value

from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.core.profile import Range
from alula.core.progress import Silent
from alula.families import parse_inputs

SIDES = {"height": Range(8, 16, 32), "width": Range(8, 24, 40)}
NAMED = "x=float32[batch,3,height,width]"


def built(
    model: Path,
    to: Path,
    *inputs: str,
    target: str = "onnxruntime",
    precision: str = "auto",
    axes: dict[str, Range] | None = None,
    data: Path | None = None,
    metric: str | None = None,
) -> Bundle:
    request = BuildRequest(
        model=str(model),
        to=to,
        target=target,
        precision=precision,
        inputs=parse_inputs(inputs),
        axes={"batch": Range(1, 2, 4), **(axes or {})} if axes is not None else {},
        data=data,
        metric=metric,
    )
    return build(request, Silent()).bundle


def logarithm() -> onnx.ModelProto:
    nodes = [node("Log", "x", "l"), node("MatMul", "l w", "y")]
    return model_of(nodes, [value("x", ["n", 4])], [value("y", ["n", 3])], {"w": numbers(4, 3)})
