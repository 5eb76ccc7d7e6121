"""What TensorRT 8.6's ONNX parser refuses, as rules: its library runs on a GPU alone, its rules can be read.

They are the conditions that the parser (libnvonnxparser 8.6.0) names in its messages, and its list of operators.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

OPERATORS = frozenset(
    {
        *(
            "Abs",
            "Add",
            "And",
            "ArgMax",
            "ArgMin",
            "AveragePool",
            "BatchNormalization",
            "Cast",
            "Ceil",
            "Clip",
        ),
        *("Concat", "Constant", "ConstantOfShape", "Conv", "ConvTranspose", "Cos", "DepthToSpace", "Div"),
        *("DequantizeLinear", "Einsum", "Elu", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather"),
        *("GatherElements", "GatherND", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Greater"),
        *(
            "GreaterOrEqual",
            "HardSigmoid",
            "HardSwish",
            "Identity",
            "InstanceNormalization",
            "IsInf",
            "IsNaN",
        ),
        *("LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "MatMul", "Max", "MaxPool", "Min"),
        *("Mod", "Mul", "Neg", "Not", "Or", "Pad", "Pow", "PRelu", "QuantizeLinear", "Range", "Reciprocal"),
        *("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Reshape"),
        *("Resize", "ScatterElements", "ScatterND", "Shape", "Sigmoid", "Sign", "Sin", "Slice", "Softmax"),
        *("Softplus", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Tile", "TopK", "Transpose"),
        *("Trilu", "Unsqueeze", "Where", "Xor"),
    }
)
"""Without those that it makes loops of (CumSum, Loop), which no CUDA graph takes."""

_TYPES = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL}
)
_FIXED_AXES = {"Slice": 3, "Squeeze": 1, "Unsqueeze": 1, "ReduceSum": 1}
_LARGEST = (1 << 31) - 1
_OF_FLOATS = frozenset(
    {"Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Log", "Neg", "Reciprocal", "Sign", "Sin", "Sqrt"}
)
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})


def refusals(model: ir.Model) -> list[str]:
    """Why the parser would not take a graph, or not mean the same by it; nothing if it does."""
    found = [f"opset {opset}" for opset in (model.opset_imports[""],) if opset > 17]
    for node in model.graph.all_nodes():
        found += [f"{node.name}: {node.op_type}: {reason}" for reason in _reasons(node)]
    for name, value in model.graph.initializers.items():
        if value.dtype not in _TYPES and not _is_zero_point(value):
            found.append(f"{name}: a constant of {value.dtype}")
        if value.dtype == ir.DataType.INT64 and value.const_value is not None:
            numbers = value.const_value.numpy()
            if numbers.size and np.abs(numbers).max() > _LARGEST and not _is_end(value):
                found.append(f"{name}: beyond 32 bits")
    return found


def _reasons(node: ir.Node) -> Iterator[str]:
    if node.op_type not in OPERATORS:
        yield "not known"
    if node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
        yield from _rounding(node)
    if node.op_type == "Shape" and {"start", "end"} & node.attributes.keys():
        yield "a range is read as the whole shape"
    if (at := _FIXED_AXES.get(node.op_type)) is not None and not _is_known(node, at):
        yield "axes are not constant"
    if node.op_type == "Trilu" and (shape := node.inputs[0].shape) is not None and len(shape) > 3:  # type: ignore[union-attr]
        yield "more than three axes"
    if node.op_type in _OF_FLOATS and (dtype := node.inputs[0].dtype) not in {*_FLOATS, None}:  # type: ignore[union-attr]
        yield f"of {dtype}, is there for floating point alone"
    if node.op_type in {"MaxPool", "LayerNormalization"} and len(node.outputs) > 1:
        yield "more than one output"
    for value in node.outputs:
        if value.dtype is not None and value.dtype not in _TYPES and node.op_type != "QuantizeLinear":
            yield f"gives {value.dtype}"


def _rounding(node: ir.Node) -> Iterator[str]:
    if len(node.inputs) != 3:
        yield "needs three inputs"
        return
    number, scale, zero = node.inputs
    if (
        number is None
        or scale is None
        or zero is None
        or scale.const_value is None
        or zero.const_value is None
    ):
        yield "scale and zero point are not constant"
        return
    if number.const_value is not None and node.op_type == "DequantizeLinear":
        yield "there are no constants of eight bits"
    if scale.dtype != ir.DataType.FLOAT or not (scale.const_value.numpy() > 0).all():
        yield "the scale is read as positive fp32"
    if zero.const_value.numpy().any() or zero.const_value.size != scale.const_value.size:
        yield "as many zero points as scales, all zero"
    real = number if node.op_type == "QuantizeLinear" else node.outputs[0]
    if real.dtype != ir.DataType.FLOAT:
        yield f"{real.dtype} beside eight bits"


def _is_known(node: ir.Node, at: int) -> bool:
    value = node.inputs[at] if len(node.inputs) > at else None
    return value is not None and value.const_value is not None


def _is_zero_point(value: ir.Value) -> bool:
    return all(
        use.node.op_type in {"QuantizeLinear", "DequantizeLinear"} and use.idx == 2 for use in value.uses()
    )


def _is_end(value: ir.Value) -> bool:
    """Whether this only says where slices end: what is too large is cut off."""
    return all(use.node.op_type == "Slice" and use.idx == 2 for use in value.uses())
