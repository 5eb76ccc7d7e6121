"""Other forms of a decoder with pages, that OpenVINO runs faster for some steps; all of them compute the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from numpy.typing import NDArray

from alula.engines.paged.pages import TOKENS

_SIGN = 0x88
"""The sign of both numbers of four bits in a byte: turned, what is signed counts from nought."""
_MIDDLE = 8
_LARGEST, _LARGEST_OF_FOUR = 127, 7
_TOGETHER = 2
"""Blocks of four bits that are one of eight: of 64 numbers then, as in weights stored in eight bits."""


def fix(model: ov.Model, rows: int) -> None:
    """A token of each of so many sequences, whose pages alone are any number: OpenVINO asks no node for its shapes."""
    each, ends = [rows], [rows + 1]
    tokens = {
        name: [*list(value.get_partial_shape())[:-2], rows, 1]
        for value in model.inputs
        if (name := value.get_any_name()) in TOKENS
    }
    model.reshape(
        {
            **tokens,
            "answers": each,
            "past_lens": each,
            "subsequence_begins": ends,
            "block_indices_begins": ends,
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
    _write_anew(model, _Four.joined)


def stack(model: ov.Model) -> None:
    """Zeros of weights in four bits as rows below them, in products of as many rows each as the model is fixed to.

    A product of their own takes as long to be begun as to be done. Gate and up of a feed-forward, which read the same
    states, are one product then as well.
    """
    readers: dict[tuple[str, int], list[_Apart]] = {}
    for each in _apart(model):
        source = each.whole.input_value(0).get_node().input_value(0)
        readers.setdefault((source.get_node().get_friendly_name(), source.get_index()), []).append(each)
    for found in readers.values():
        _stack(found)
    model.validate_nodes_and_infer_types()


def _stack(found: Sequence[_Apart]) -> None:
    """Their columns side by side, and cut apart again behind the product."""
    four = _Four.beside([each.four for each in found])
    states, sums = (found[0].whole.input_value(at).get_node().input_value(0) for at in (0, 1))
    blocks, block, _ = four.shape
    nothing = np.zeros((states.get_partial_shape()[0].get_length(), 1, -blocks % block), np.float32)
    below = [sums, ops.constant(nothing)] if nothing.size else [sums]
    product = ops.matmul(
        ops.concat([states, *below, *below], -1), four.stacked(), transpose_a=False, transpose_b=False
    )
    if len(found) == 1:
        _replace(found[0].whole, product)
        return
    columns = np.array([each.four.shape[2] for each in found])
    parts = ops.variadic_split(product, ops.constant(np.array(-1)), ops.constant(columns))
    for at, each in enumerate(found):
        each.whole.output(0).replace(parts.output(at))


def widen(model: ov.Model) -> None:
    """Numbers of four bits and their zeros as numbers of eight without: what is lost is a sixteenth of a step or so.

    Activations may be rounded before them, which OpenVINO does not do before zeros, and one product is left of two.
    """
    _write_anew(model, _Four.widened)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Four:
    """A matrix of four bits with its zeros: [blocks, block, columns], of which a block has a scale, and what it adds.

    The numbers are signed, two in a byte, the first of them low.
    """

    shape: tuple[int, int, int]
    numbers: NDArray[np.uint8]
    scales: NDArray[np.float32]
    moved: NDArray[np.float32]

    @staticmethod
    def beside(found: Sequence[_Four]) -> _Four:
        """One matrix with the columns of all, which have blocks alike."""
        blocks, block, _ = found[0].shape
        numbers = [each.numbers.reshape(blocks, block, -1) for each in found]
        return _Four(
            shape=(blocks, block, sum(each.shape[2] for each in found)),
            numbers=np.concatenate(numbers, axis=-1).reshape(-1),
            scales=np.concatenate([each.scales for each in found], axis=-1),
            moved=np.concatenate([each.moved for each in found], axis=-1),
        )

    def stacked(self) -> ov.Node:
        """Number x scale in four bits, and below them two rows for each block: what it adds, and what of that is lost.

        SmolLM2-135M's KL, a token at a time: 0.0040 with a product for the zeros, 0.0046 so, 0.073 with one row.
        """
        blocks, block, columns = self.shape
        left = np.zeros((-(-blocks // block), block, columns), np.float32)
        left.reshape(-1, columns)[:blocks] = self.moved
        parts = [(self._signed(), self.scales)]
        for _ in range(2):
            numbers, scales = _rounded(left, _LARGEST_OF_FOUR)
            left = left - numbers * scales
            parts.append((numbers, scales[:, 0]))
        whole = np.concatenate([numbers for numbers, _ in parts]).astype(np.uint8) & 0xF
        low, high = whole.reshape(-1, 2).T
        signed = ov.Tensor(ov.Type.i4, ov.Shape(list(whole.shape)))
        signed.data.reshape(-1).view(np.uint8)[:] = low | high << 4
        scales = np.concatenate([scales for _, scales in parts])
        return _flat(ops.multiply(ops.convert(ops.constant(signed), "f32"), ops.constant(scales[:, None])))

    def joined(self) -> ov.Node:
        """(number - zero) x scale."""
        counted = ov.Tensor(ov.Type.u4, ov.Shape(list(self.shape)))
        counted.data.reshape(-1)[:] = self.numbers ^ _SIGN
        zeros = _MIDDLE - self.moved / self.scales
        floats = ops.convert(ops.constant(counted), "f32")
        away = ops.subtract(floats, ops.constant(zeros[:, None]))
        return _flat(ops.multiply(away, ops.constant(self.scales[:, None])))

    def widened(self) -> ov.Node:
        """Number x scale, in eight bits."""
        values = self._signed() * self.scales[:, None] + self.moved[:, None]
        if len(values) % _TOGETHER == 0:
            values = values.reshape(-1, _TOGETHER * values.shape[1], values.shape[2])
        numbers, scales = _rounded(values, _LARGEST)
        eight = ops.constant(numbers.astype(np.int8))
        return _flat(ops.multiply(ops.convert(eight, "f32"), ops.constant(scales)))

    def _signed(self) -> NDArray[np.float32]:
        counted = self.numbers ^ _SIGN
        pairs = np.stack([counted & 0xF, counted >> 4], axis=-1)
        return pairs.reshape(self.shape).astype(np.float32) - _MIDDLE


def _rounded(values: NDArray[np.float32], largest: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Whole numbers up to the largest, and the scale of each block."""
    scales = np.abs(values).max(axis=1, keepdims=True) / np.float32(largest)
    scales[scales == 0] = 1
    return np.rint(values / scales), scales


def _flat(restored: ov.Node) -> ov.Node:
    blocks, block, columns = restored.get_output_partial_shape(0).to_shape()
    return ops.reshape(restored, ops.constant(np.array([blocks * block, columns])), special_zero=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Apart:
    """A sum of two products, of which the second is with zeros alone."""

    whole: ov.Node
    four: _Four


def _apart(model: ov.Model) -> Iterator[_Apart]:
    """Wherever zeros have a product of their own."""
    for whole in model.get_ordered_ops():
        if not _is(whole, "Add"):
            continue
        product, moving = (whole.input_value(at).get_node() for at in (0, 1))
        if _is(moving, "MatMul") and _is(moving.input_value(0).get_node(), "ReduceSum"):
            yield _Apart(whole=whole, four=_four(product, moving.input_value(1).get_node()))


def _write_anew(model: ov.Model, weight: Callable[[_Four], ov.Node]) -> None:
    """One product instead of two, wherever zeros have one of their own."""
    for each in _apart(model):
        states = each.whole.input_value(0).get_node().input_value(0)
        _replace(each.whole, ops.matmul(states, weight(each.four), transpose_a=False, transpose_b=False))
    model.validate_nodes_and_infer_types()


def _four(product: ov.Node, moved: ov.Node) -> _Four:
    """From number x scale, and what every block adds."""
    restored = product.input_value(1).get_node()
    scaled = restored.input_value(0).get_node()
    numbers, scales = (scaled.input_value(at).get_node().input_value(0).get_node() for at in (0, 1))
    blocks, block, columns = numbers.get_output_partial_shape(0).to_shape()
    return _Four(
        shape=(blocks, block, columns),
        numbers=numbers.input_value(0).get_node().get_data().reshape(-1).view(np.uint8),
        scales=scales.get_data(),
        moved=moved.input_value(0).get_node().get_data().astype(np.float32),
    )


def _replace(old: ov.Node, new: ov.Node) -> None:
    new.set_friendly_name(old.get_friendly_name())
    old.output(0).replace(new.output(0))


def _is(node: ov.Node, kind: str) -> bool:
    return bool(node.get_type_name() == kind)
