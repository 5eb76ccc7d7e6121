"""Other forms of a decoder with pages, that OpenVINO runs faster for some steps; all of them compute the same."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset13 as ops

_SIGN = 0x88
"""The sign of both numbers of four bits in a byte: turned, what is signed counts from nought."""
_MIDDLE = 8


def fix(model: ov.Model) -> None:
    """One token of one sequence, whose pages alone are any number: OpenVINO then asks no node for its shapes."""
    one, two = [1], [2]
    tokens = {
        name: [*list(value.get_partial_shape())[:-2], 1, 1]
        for value in model.inputs
        if (name := value.get_any_name()) in {"input_ids", "position_ids", "image_rows"}
    }
    model.reshape(
        {
            **tokens,
            "answers": one,
            "past_lens": one,
            "subsequence_begins": two,
            "block_indices_begins": two,
        }
    )


def turn(model: ov.Model) -> None:
    """Products with weights of bf16 as OpenVINO's exporters write them: for AMX it fuses a gated feed-forward then."""
    for product in model.get_ordered_ops():
        restored = product.input_value(1).get_node() if _is(product, "MatMul") else None
        if restored is None or not _is(restored, "Convert"):
            continue
        weight = restored.input_value(0).get_node()
        if not _is(weight, "Constant") or weight.get_element_type() != ov.Type.bf16:
            continue
        turned = ov.Tensor(ov.Type.bf16, ov.Shape(list(weight.get_output_shape(0))[::-1]))
        turned.data.view(np.uint16)[:] = weight.get_data().view(np.uint16).T
        other = ops.convert(ops.constant(turned), "f32")
        _replace(product, ops.matmul(product.input_value(0), other, transpose_a=False, transpose_b=True))
    model.validate_nodes_and_infer_types()


def join(model: ov.Model) -> None:
    """Zeros of weights in four bits where they belong, not in a product of their own: that is slow for many tokens."""
    for whole in model.get_ordered_ops():
        if not _is(whole, "Add"):
            continue
        product, moving = (whole.input_value(at).get_node() for at in (0, 1))
        if _is(moving, "MatMul") and _is(moving.input_value(0).get_node(), "ReduceSum"):
            weight = _joined(product, moving.input_value(1).get_node())
            _replace(whole, ops.matmul(product.input_value(0), weight, transpose_a=False, transpose_b=False))
    model.validate_nodes_and_infer_types()


def _joined(product: ov.Node, moved: ov.Node) -> ov.Node:
    """(number - zero) x scale, from number x scale and what every block adds."""
    restored = product.input_value(1).get_node()
    scaled = restored.input_value(0).get_node()
    numbers, scales = (scaled.input_value(at).get_node().input_value(0).get_node() for at in (0, 1))
    shape = list(numbers.get_output_partial_shape(0).to_shape())
    counted = ov.Tensor(ov.Type.u4, ov.Shape(shape))
    signed = numbers.input_value(0).get_node().get_data().reshape(-1).view(np.uint8)
    counted.data.reshape(-1)[:] = signed ^ _SIGN
    steps = scales.get_data()
    zeros = _MIDDLE - moved.input_value(0).get_node().get_data().astype(np.float32) / steps
    floats = ops.convert(ops.constant(counted), "f32")
    away = ops.subtract(floats, ops.constant(zeros[:, None]))
    moved_back = ops.multiply(away, ops.constant(steps[:, None]))
    rows = ops.constant(np.array([shape[0] * shape[1], shape[2]]))
    return ops.reshape(moved_back, rows, special_zero=False)


def _replace(old: ov.Node, new: ov.Node) -> None:
    new.set_friendly_name(old.get_friendly_name())
    old.output(0).replace(new.output(0))


def _is(node: ov.Node, kind: str) -> bool:
    return bool(node.get_type_name() == kind)
