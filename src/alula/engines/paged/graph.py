"""A decoder's portable graph as OpenVINO runs it fastest: attention over pages, and tokens of any sequences in one row.

A batch of as many rows as there are new tokens, each of length one, whoever's they are: then what transposes heads and
length moves nothing, and OpenVINO drops it. Products, norms and rotation are fused by OpenVINO itself, given forms that
it knows; the two it would not know from ONNX are written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino.frontend.onnx import ConversionExtension

from alula.core.decoding import IMAGE, is_alone
from alula.core.errors import CompileError
from alula.core.tensor import TensorSpec
from alula.engines.paged.pages import TOKENS

VERSION = "2026.4"
"""Of OpenVINO, whose attention over pages has changed its inputs from version to version."""

_KEY, _VALUE, _SCALE, _WINDOW, _MOST = 3, 4, 9, 10, 12
_PAST, _BEGINS, _PAGES, _PAGES_BEGIN = 5, 6, 7, 8
# What we have no use for: slopes of ALiBi, scores given back, a cache that is turned, thinned or looked through, sinks.
# In the order of OpenVINO 2026.4, as (dtype, shape).
_UNUSED: Mapping[int, tuple[type, tuple[int, ...]]] = {
    11: (np.float32, (0,)),
    13: (np.int32, (0,)),
    14: (np.int32, (0,)),
    15: (np.int32, (0,)),
    16: (np.float32, (0,)),
    17: (np.float32, (0,)),
    18: (np.int32, ()),
    19: (np.int32, ()),
    20: (np.float32, (0, 0, 0, 0)),
    21: (np.int32, ()),
    22: (np.int32, (0,)),
    23: (np.int32, (0,)),
    24: (np.int32, (0,)),
    25: (np.int32, (0,)),
    26: (np.uint8, (0,)),
    27: (np.int32, (0,)),
}
_TAKEN_WITHOUT = frozenset({"softcap", "softmax_precision"})


def is_paged(inputs: Sequence[TensorSpec]) -> bool:
    """Whether the cache of a graph of these inputs is kept in pages."""
    return is_alone(spec.name for spec in inputs)


def read(path: Path, *, half: bool) -> ov.Model:
    """The graph with pages; with `half` its attention is bf16, whatever the rest computes in."""
    attentions: list[ov.Node] = []

    def attention(context: Any) -> list[ov.Output]:
        found, given = _attention(context, half=half)
        attentions.append(found)
        return given

    core = ov.Core()
    core.add_extension(
        [ConversionExtension("Attention", attention), ConversionExtension("RotaryEmbedding", _rotary)]
    )
    model = core.read_model(path)
    if not attentions:
        raise CompileError(
            f"{path}: a decoder without Attention; its attention has been written out in parts"
        )
    return _with_pages(model, attentions, path)


def _attention(context: Any, *, half: bool) -> tuple[ov.Node, list[ov.Output]]:
    """Attention over a cache that is elsewhere, of the new keys and values alone; its inputs come in `_with_pages`."""
    if refused := sorted(name for name in _TAKEN_WITHOUT if context.has_attribute(name)):
        raise CompileError(f"Attention with {refused[0]}, which attention over pages does without")
    query = context.get_input(0)
    key, value = (_new(context.get_input(at)) for at in (1, 2))
    heads, size = _fixed(query, 1), _fixed(query, 3)
    kv_heads, value_size = _fixed(key, 1), _fixed(value, 3)
    rows = [
        _flat(each, width, half=half)
        for each, width in ((query, heads * size), (key, kv_heads * size), (value, kv_heads * value_size))
    ]
    scale = context.get_attribute("scale") if context.has_attribute("scale") else size**-0.5
    given: dict[int, ov.Output] = dict(enumerate(rows))
    given |= {at: _constant(np.zeros(shape, dtype)) for at, (dtype, shape) in _UNUSED.items()}
    given |= {at: _constant(np.zeros((0,) * 4, np.float32)) for at in (_KEY, _VALUE)}
    given |= {at: _constant(np.zeros(0, np.int32)) for at in (_PAST, _BEGINS, _PAGES, _PAGES_BEGIN)}
    given |= {at: _constant(np.array(0, np.int32)) for at in (_WINDOW, _MOST)}
    given[_SCALE] = _constant(np.array(scale, np.float32))
    found = _made([given[at] for at in range(len(given))])
    for name, number in (
        ("num_k_heads", kv_heads),
        ("k_head_size", size),
        ("num_v_heads", kv_heads),
        ("v_head_size", value_size),
    ):
        found.get_rt_info()[name] = number
    seen = found.output(0)
    if half:
        seen = ops.convert(seen, "f32").output(0)
    shape = _constant(np.array([-1, heads, 1, value_size]))
    return found, ops.reshape(seen, shape, special_zero=False).outputs()


def _made(inputs: list[ov.Output]) -> ov.Node:
    try:
        from openvino.op import _PagedAttentionExtension as PagedAttention  # noqa: PLC0415 - not in every version

        return PagedAttention(inputs)
    except (ImportError, RuntimeError) as error:
        raise CompileError(
            f"openvino {ov.__version__} has no attention over pages, or another than {VERSION}, which is known here: "
            f"pip install 'openvino=={VERSION}.*'"
        ) from error


def _new(joined: ov.Output) -> ov.Output:
    """The new keys or values of those that stand behind the past."""
    node = joined.get_node()
    if node.get_type_name() != "Concat" or node.get_input_size() != 2:
        raise CompileError(
            f"Attention reads {node.get_type_name()}, expected the past with new tokens behind it"
        )
    new: ov.Output = node.input_value(1)
    return new


def _flat(value: ov.Output, width: int, *, half: bool) -> ov.Output:
    """[tokens, heads x size], from a head each."""
    rows = ops.reshape(value, _constant(np.array([-1, width])), special_zero=False)
    return (ops.convert(rows, "bf16") if half else rows).output(0)


def _rotary(context: Any) -> list[ov.Output]:
    """Halves turned against each other, in the form that OpenVINO fuses."""
    value, cosines, sines = (context.get_input(at) for at in range(3))
    half = _fixed(value, 3) // 2
    if any(context.has_attribute(name) for name in ("interleaved", "rotary_embedding_dim")):
        raise CompileError("RotaryEmbedding that is interleaved or partial; expected halves of whole heads")
    halves = ops.variadic_split(value, _constant(np.array(3)), _constant(np.array([half, half])))
    turned = ops.concat(
        [ops.multiply(halves.output(1), _constant(np.array(-1, np.float32))), halves.output(0)], -1
    )
    along, across = ops.multiply(value, _twice(cosines)), ops.multiply(turned, _twice(sines))
    return list(ops.add(along, across).outputs())


def _twice(angles: ov.Output) -> ov.Node:
    """[tokens, 1, 1, size], from half as many for both halves."""
    spread = ops.unsqueeze(angles, _constant(np.array(1)))
    return ops.concat([spread, spread], -1)


def _with_pages(model: ov.Model, attentions: Sequence[ov.Node], path: Path) -> ov.Model:
    """What is left when the past is no input any more, and masks are nobody's: new inputs, and logits alone."""
    row, one = ov.PartialShape([-1]), ov.PartialShape([])
    shared = {
        at: _parameter(name, shape, ov.Type.i32)
        for at, name, shape in (
            (_PAST, "past_lens", row),
            (_BEGINS, "subsequence_begins", row),
            (_PAGES, "block_indices", row),
            (_PAGES_BEGIN, "block_indices_begins", row),
            (_MOST, "max_context_len", one),
        )
    }
    caches: list[ov.Node] = []
    for index, node in enumerate(attentions):
        own = {
            at: _parameter(f"{name}_cache.{index}", ov.PartialShape([-1] * 4), ov.Type.dynamic)
            for at, name in ((_KEY, "key"), (_VALUE, "value"))
        }
        caches += own.values()
        for at, parameter in {**shared, **own}.items():
            node.input(at).replace_source_output(parameter.output(0))
    kept = {each.get_friendly_name(): each for each in model.get_parameters()}
    tokens = [kept[name] for name in (*TOKENS, IMAGE) if name in kept]
    for each in tokens:
        *axes, _, _ = each.get_partial_shape()
        if each.get_friendly_name() != IMAGE:
            each.set_partial_shape(ov.PartialShape([*axes, -1, 1]))
    _pick_rows(kept["answers"], path)
    logits = ops.result(model.output("logits").get_node().input_value(0))
    logits.output(0).set_names({"logits"})
    paged = ov.Model([logits], [*tokens, kept["answers"], *shared.values(), *caches], "paged")
    paged.validate_nodes_and_infer_types()
    return paged


def _pick_rows(answers: ov.Node, path: Path) -> None:
    """Answers are places in the row of tokens, which is the batch now."""
    [reader, *others] = answers.output(0).get_target_inputs()
    node = reader.get_node()
    if others or node.get_type_name() != "Gather" or reader.get_index() != 1:
        raise CompileError(f"{path}: 'answers' is read by {node.get_type_name()}, expected one Gather")
    node.input(2).replace_source_output(_constant(np.array(0)))


def _parameter(name: str, shape: ov.PartialShape, dtype: ov.Type) -> ov.Node:
    made = ops.parameter(shape, dtype)
    made.set_friendly_name(name)
    made.output(0).set_names({name})
    return made


def _constant(array: np.ndarray[Any, Any]) -> ov.Output:
    return ops.constant(array).output(0)


def _fixed(value: ov.Output, axis: int) -> int:
    return int(value.get_partial_shape()[axis].get_length())
