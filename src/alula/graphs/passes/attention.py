"""The Attention operator (opset 23, 24) written out in products and a softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError, PreconditionError
from onnx_ir.passes.common import ShapeInferencePass

from alula.graphs.passes.caches import is_cache, reads_source
from alula.graphs.passes.edit import LAST, Editor, constant_linear, first_input, scale_constant
from alula.graphs.passes.heads import (
    head_counts,
    head_size,
    is_packed,
    of_keys,
    of_queries,
    shared_heads,
    split_heads,
)

# Added to a score that must not count: its exponential is 0, and no sum with a score becomes infinite.
# float16's smallest exponential is exp(-17.4).
_FAR_BELOW = {ir.DataType.FLOAT: -1e9, ir.DataType.BFLOAT16: -1e9, ir.DataType.FLOAT16: -1e4}
_LOWEST = {ir.DataType.FLOAT: -3e38, ir.DataType.BFLOAT16: -3e38, ir.DataType.FLOAT16: -6e4}

MOST_SCORES = 1 << 30
"""Of a tensor of scores: 2 GiB in half precision. No tensor of TensorRT may have more than 2^31 - 1 elements."""

_INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
_CACHES = frozenset({"past_key", "past_value", "nonpad_kv_seqlen"})


class DecomposeAttention(InPlacePass):
    """Replaces every Attention by MatMul, Add, Softmax and MatMul; rows that attend to nothing give zeros.

    A constant linear in front of the query takes the scale into its weights; `late` divides the scores instead, which
    is the form that TensorRT 8.6 has a kernel for. With `which`, those it is true of alone. Where states that see
    everything may be as long as `longest`, heads are taken some at a time, as many as keep each tensor of scores
    within `MOST_SCORES`, one at least. With `apart`, keys and values of a cache are not joined with new ones but
    their scores are, except where a source is read.
    """

    def __init__(
        self,
        which: Callable[[ir.Node], bool] = lambda node: True,
        *,
        late: bool = False,
        apart: bool = False,
        longest: int = 0,
    ) -> None:
        super().__init__()
        self.which, self.late, self.apart, self.longest = which, late, apart, longest

    def requires(self, model: ir.Model) -> None:
        """No key-value cache, no second output, and head sizes that are known or given by `scale`."""
        if any(_needs_shapes(node) for node in _attentions(model)):
            ShapeInferencePass()(model)
        for node in filter(self.which, _attentions(model)):
            if reason := _refusal(node):
                raise PreconditionError(f"{node.name}: {reason}")

    def call(self, model: ir.Model) -> PassResult:
        """Rewrite them one by one."""
        nodes = list(filter(self.which, _attentions(model)))
        apart = self.apart and not reads_source(model)
        for node in nodes:
            form = _Form(late=self.late, apart=apart, heads=heads_of(node, self.longest))
            _decompose(node, form)
        return PassResult(model, bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        """None of them is left."""
        if left := list(filter(self.which, _attentions(model))):
            raise PostconditionError(f"{left[0].name}: still there")


def _attentions(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph.all_nodes() if node.op_type == "Attention" and node.domain == ""]


def _input(node: ir.Node, name: str) -> ir.Value | None:
    index = _INPUTS.index(name)
    return node.inputs[index] if index < len(node.inputs) else None


def _needs_shapes(node: ir.Node) -> bool:
    query = node.inputs[0]
    return query is None or query.shape is None or query.dtype is None or head_size(node) is None


def _refusal(node: ir.Node) -> str:  # noqa: PLR0911 - one line per refusal
    """Why this Attention cannot be written out; empty when it can."""
    query = node.inputs[0]
    for name in sorted(_CACHES):
        if _input(node, name) is not None:
            return f"Attention with {name} is not supported"
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return "Attention with more outputs than Y is not supported"
    if query is None or query.shape is None or query.dtype not in _FAR_BELOW:
        return "the shape and the float dtype of Q must be known"
    if node.attributes.get_int("softmax_precision", 1) != ir.DataType.FLOAT:
        return "Attention with a softmax_precision other than float is not supported"
    of_query, of_key = head_counts(node)
    if not of_query or not of_key or of_query % of_key:
        return f"the head counts of Q and K must be known and divide, not {of_query} and {of_key}"
    if node.attributes.get_float("scale", None) is None and head_size(node) is None:
        return "the head size of Q must be known, or scale given"
    return ""


def heads_of(node: ir.Node, longest: int) -> int:
    """How many heads of an Attention are taken at once; all where it has a mask, or packs no states."""
    heads = head_counts(node)[0]
    masked = _input(node, "attn_mask") is not None or bool(node.attributes.get_int("is_causal", 0))
    if masked or not is_packed(node) or not longest:
        return heads
    return min(heads, max(1, MOST_SCORES // longest**2))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mask:
    """What is added to the scores, and which rows of the result are kept (1) or become zero (0)."""

    bias: ir.Value | None
    kept_rows: ir.Value | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Form:
    """How an Attention is written out."""

    late: bool
    apart: bool
    heads: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Attended:
    """Some of what is attended to: keys, transposed, and their values."""

    key: ir.Value
    value: ir.Value


def _decompose(node: ir.Node, form: _Form) -> None:
    edit = Editor(node)
    query, key, value = node.inputs[:3]
    assert query is not None
    assert key is not None
    assert value is not None
    packed = is_packed(node)
    mask = _mask(edit, query, key)
    query = query if form.late else _scaled(edit, query, _scale(node))
    query = (
        split_heads(edit, query, node.attributes.get_int("q_num_heads", 0))
        if packed
        else of_keys(edit, query)
    )
    seen = _apart(edit, key, value) if form.apart and not packed else [_whole(edit, key, value)]
    found = [
        _context(edit, part, some, mask, late=form.late)
        for part, some in _some_heads(edit, query, seen, form.heads)
    ]
    context = found[0] if len(found) == 1 else edit.op("Concat", *found, axis=1)
    if packed:
        context = edit.op("Transpose", context, perm=[0, 2, 1, 3])
        context = edit.op("Reshape", context, edit.ints(0, 0, -1))
    node.resize_outputs(1)
    edit.replace(context)


def _whole(edit: Editor, key: ir.Value, value: ir.Value) -> _Attended:
    """All of it at once."""
    if not is_packed(edit.node):
        return _Attended(key=edit.op("Transpose", key, perm=[0, 1, 3, 2]), value=value)
    key, value = (shared_heads(edit, each) for each in (key, value))
    # With the heads behind, the key goes to its transpose in one step.
    return _Attended(
        key=edit.op("Transpose", key, perm=[0, 2, 3, 1]), value=edit.op("Transpose", value, perm=[0, 2, 1, 3])
    )


def _apart(edit: Editor, key: ir.Value, value: ir.Value) -> list[_Attended]:
    """A cache and what is new by themselves, where these are both joined of the two."""
    keys, values = _joined(key), _joined(value)
    if len(keys) != len(values):
        keys, values = [key], [value]
    return [_whole(edit, *pair) for pair in zip(keys, values, strict=True)]


def _joined(value: ir.Value) -> list[ir.Value]:
    """A cache and what lies behind it; the value alone if it is no such thing."""
    node = value.producer()
    if node is None or node.op_type != "Concat" or not is_cache(first_input(node)):
        return [value]
    return [each for each in node.inputs if each is not None]


def _some_heads(
    edit: Editor, query: ir.Value, seen: Sequence[_Attended], most: int
) -> Iterator[tuple[ir.Value, Sequence[_Attended]]]:
    """Queries [batch, heads, length, size] and what they see, so many heads at once."""
    heads = head_counts(edit.node)[0]
    if most >= heads:
        yield query, seen
        return
    for first in range(0, heads, most):
        ends = first, min(first + most, heads)
        some = [
            _Attended(key=_of_heads(edit, each.key, ends), value=_of_heads(edit, each.value, ends))
            for each in seen
        ]
        yield _of_heads(edit, query, ends), some


def _of_heads(edit: Editor, value: ir.Value, ends: tuple[int, int]) -> ir.Value:
    """Some heads of [batch, heads, ...]."""
    return edit.op("Slice", value, *map(edit.ints, ends), edit.ints(1))


def _context(
    edit: Editor, query: ir.Value, seen: Sequence[_Attended], mask: _Mask, *, late: bool
) -> ir.Value:
    """What some queries take of keys and their values."""
    found = [edit.op("MatMul", query, each.key) for each in seen]
    scores = found[0] if len(found) == 1 else edit.op("Concat", *found, axis=3)
    scores = scores if is_packed(edit.node) else of_queries(edit, scores)
    if late and _scale(edit.node) != 1.0:
        assert query.dtype is not None
        scores = edit.op("Div", scores, edit.number(1 / _scale(edit.node), query.dtype))
    return _attend(edit, scores, [each.value for each in seen], mask)


def _attend(edit: Editor, scores: ir.Value, values: Sequence[ir.Value], mask: _Mask) -> ir.Value:
    """Softmax over the masked scores, times the values."""
    if softcap := edit.node.attributes.get_float("softcap", 0.0):
        assert scores.dtype is not None
        cap = edit.number(softcap, scores.dtype)
        scores = edit.op("Mul", edit.op("Tanh", edit.op("Div", scores, cap)), cap)
    if mask.bias is not None:
        scores = edit.op("Add", scores, mask.bias)
    shares = edit.op("Softmax", scores, axis=-1)
    if is_packed(edit.node):
        context = edit.op("MatMul", shares, values[0])
    else:
        context = of_queries(edit, _weighed(edit, of_keys(edit, shares), values))
    return context if mask.kept_rows is None else edit.op("Mul", context, mask.kept_rows)


def _weighed(edit: Editor, shares: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
    """The sum of values by their shares; those of a cache lie before the others."""
    if len(values) == 1:
        return edit.op("MatMul", shares, values[0])
    past, new = values
    axis = edit.ints(3)
    places = edit.op("Shape", past, start=2, end=3, dtype=ir.DataType.INT64)
    of_past = edit.op("Slice", shares, edit.ints(0), places, axis)
    of_new = edit.op("Slice", shares, places, edit.ints(LAST), axis)
    return edit.op("Add", edit.op("MatMul", of_past, past), edit.op("MatMul", of_new, new))


def _scale(node: ir.Node) -> float:
    given = node.attributes.get_float("scale", None)
    if given is not None:
        return given
    size = head_size(node)
    assert size is not None
    return 1 / math.sqrt(size)


def _scaled(edit: Editor, query: ir.Value, scale: float) -> ir.Value:
    """The query times the scale, which a constant linear in front of it takes into its weights."""
    if scale == 1.0:
        return query
    linear = constant_linear(query)
    if not linear:
        assert query.dtype is not None
        return edit.op("Mul", query, edit.number(scale, query.dtype))
    for user, index in linear:
        scale_constant(user, index, scale)
    return query


def _mask(edit: Editor, query: ir.Value, key: ir.Value) -> _Mask:
    """Additive masks are added as they are; boolean and causal ones become arithmetic."""
    given = _unexpanded(_input(edit.node, "attn_mask"))
    causal = bool(edit.node.attributes.get_int("is_causal", 0))
    dtype = query.dtype
    assert dtype is not None
    keep = edit.op("Cast", given, to=dtype, dtype=dtype) if _is_bool(given) and given is not None else None
    if causal:
        seen = _seen(edit, query, key, dtype)
        keep = seen if keep is None else edit.op("Mul", keep, seen)
    if keep is None:
        return _Mask(bias=None) if given is None else _additive(edit, given, dtype)
    one, far = edit.number(1.0, dtype), edit.number(-_FAR_BELOW[dtype], dtype)
    bias = edit.op("Mul", edit.op("Sub", keep, one), far)
    if _is_bool(given):
        return _Mask(bias=bias, kept_rows=_any(edit, keep))
    if given is None:
        return _Mask(bias=bias)
    added = _additive(edit, given, dtype)
    assert added.bias is not None
    return _Mask(bias=edit.op("Add", bias, added.bias), kept_rows=added.kept_rows)


def _additive(edit: Editor, given: ir.Value, dtype: ir.DataType) -> _Mask:
    """A float mask; one that might hold -inf is bounded, so that a row of nothing else gives zeros, not NaN."""
    if _is_finite(given):
        return _Mask(bias=given)
    lowest = edit.number(_LOWEST[dtype], dtype)
    rows = edit.op(
        "Greater", edit.op("ReduceMax", given, edit.ints(-1), keepdims=1), lowest, dtype=ir.DataType.BOOL
    )
    return _Mask(bias=edit.op("Max", given, lowest), kept_rows=edit.op("Cast", rows, to=dtype, dtype=dtype))


def _any(edit: Editor, keep: ir.Value) -> ir.Value:
    return edit.op("ReduceMax", keep, edit.ints(-1), keepdims=1)


def _seen(edit: Editor, query: ir.Value, key: ir.Value, dtype: ir.DataType) -> ir.Value:
    """[query length, key length], 1 where the key is not after the query."""
    axis = 1 if is_packed(edit.node) else 2
    queries, keys = (
        edit.op("Shape", each, start=axis, end=axis + 1, dtype=ir.DataType.INT64) for each in (query, key)
    )
    both = edit.op("Concat", queries, keys, axis=0)
    return edit.op("Trilu", edit.op("Expand", edit.number(1.0, dtype), both), upper=0)


def _is_bool(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.BOOL


def _unexpanded(mask: ir.Value | None) -> ir.Value | None:
    """The mask before it was spread over the scores' shape, which adding does by itself."""
    while mask is not None and (node := mask.producer()) is not None and node.op_type == "Expand":
        source = first_input(node)
        if source.dtype is None and mask.dtype is not None:
            source.dtype = mask.dtype
        mask = source
    return mask


_KEEPS_FINITE = frozenset(
    {
        "Unsqueeze",
        "Squeeze",
        "Expand",
        "Reshape",
        "Transpose",
        "Slice",
        "Gather",
        "Sub",
        "Add",
        "Mul",
        "Cast",
        "Identity",
        "Where",
    }
)


def _is_finite(value: ir.Value | None) -> bool:
    """Whether the value comes from integers, booleans and finite constants by plain arithmetic."""
    if value is None:
        return True
    if value.dtype is not None and not value.dtype.is_floating_point():
        return True
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is not None:
        return bool(np.isfinite(tensor.numpy().astype(np.float32)).all())
    node = value.producer()
    return (
        node is not None and node.op_type in _KEEPS_FINITE and all(_is_finite(each) for each in node.inputs)
    )
