"""bf16 and fp16 written into a graph: the casts between what computes in it and the rest."""

from __future__ import annotations

import re

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError, PreconditionError
from onnx_ir.passes.common import ShapeInferencePass

from alula.graphs.passes.caches import is_cache
from alula.graphs.passes.casts import BF16, FP16, FP32, MOVES, Casts, scale_fits
from alula.graphs.passes.choice import (
    FUSED,
    HALF,
    NORMS,
    Policy,
    chosen_nodes,
    float_producers,
    is_quantised,
    table_of,
)
from alula.graphs.passes.edit import Editor, first_input, is_constant
from alula.graphs.passes.fits import fits, table_fits

# Lower than any score, and finite in the precision, where the lowest fp32 number would become -inf. In fp16 it also
# leaves room for the score that it is added to.
_FAR_BELOW = {BF16: -1e30, FP16: -1e4}
_MASK_OF_ATTENTION = 3
_MADE = re.compile(r"/\d+\.\w+$")


class ToHalf(InPlacePass):
    """Rewrites an fp32 graph to a half precision where the policy says so; inputs and outputs keep their types.

    Nodes named in `keep` stay fp32, and in fp16 those whose constants it cannot hold. With `renamed`, these names are
    of the graph before it was quantised: they need not be there, and whatever was made of the same node stays fp32.
    """

    def __init__(
        self, dtype: ir.DataType, policy: Policy, keep: frozenset[str] = frozenset(), *, renamed: bool = False
    ) -> None:
        super().__init__()
        self.dtype, self.policy, self.keep, self.renamed = dtype, policy, keep, renamed
        self.origins = frozenset(map(_origin, keep)) if renamed else frozenset()

    def requires(self, model: ir.Model) -> None:
        """Nodes to keep exist, Attention is written out unless taken whole, and fp32 is the only float type."""
        if any(True for _ in model.graph.subgraphs()):
            raise PreconditionError("a graph with branches or loops is not supported")
        found = [node for node in model.graph if node.op_type == "Attention"]
        if found and not self.policy.attention:
            raise PreconditionError(f"{found[0].name}: Attention has to be decomposed first")
        unknown = sorted(self.keep - {str(node.name) for node in model.graph})
        if unknown and not self.renamed:
            raise PreconditionError(f"no node {unknown[0]!r} to keep in fp32")
        ShapeInferencePass()(model)
        for node in model.graph:
            for value in node.outputs:
                if value.dtype is None:
                    raise PreconditionError(f"{node.name}: the dtype of {value.name} is not known")
                if value.dtype.is_floating_point() and value.dtype != FP32:
                    raise PreconditionError(
                        f"{node.name}: {value.name} is {value.dtype.name}, expected FLOAT"
                    )

    def chosen(self, model: ir.Model) -> dict[ir.Node, None]:
        """The nodes that compute in half precision, in order; `requires` holds."""
        return chosen_nodes(model.graph, self.policy, self._may_change)

    def call(self, model: ir.Model) -> PassResult:
        """Decide for all nodes, then cast between them."""
        chosen = self.chosen(model)
        _bound_masks(model.graph, chosen, self.dtype)
        casts = Casts(self.dtype, restored=self.policy.quantised)
        caches = self.policy.writing and self._halves_caches(model.graph)
        if caches:
            casts.take_caches(model.graph)
        for table in filter(None, map(table_of, chosen)):
            casts.share_table(table)
        for node in list(model.graph):
            moved = MOVES | {"Concat", "Shape"} if caches else MOVES
            if node in chosen or (node.op_type in moved and first_input(node).dtype == self.dtype):
                casts.to_half(node)
            else:
                casts.to_fp32(node)
        casts.restore_outputs(model.graph, caches=caches)
        if self.policy.tables:
            for node in list(model.graph):
                if self.dtype != FP16 or table_fits(node):
                    casts.store_table(node)
        return PassResult(model, bool(chosen))

    def ensures(self, model: ir.Model) -> None:
        """Norms are fp32, softmax unless the policy says otherwise, and the outputs."""
        kept = NORMS if self.policy.scores else NORMS | {"Softmax"}
        for node in model.graph:
            if node.op_type in kept and node.outputs[0].dtype != FP32:
                raise PostconditionError(f"{node.name}: {node.op_type} is {node.outputs[0].dtype}")
        for value in model.graph.outputs:
            if value.dtype == self.dtype and not (self.policy.writing and is_cache(value)):
                raise PostconditionError(f"output {value.name} is {self.dtype.name}")

    def _may_change(self, node: ir.Node) -> bool:
        if node.name in self.keep or _origin(str(node.name)) in self.origins:
            return False
        if is_quantised(node) and not all(scale_fits(each, self.dtype) for each in _restored(node)):
            return False
        return self.dtype != FP16 or fits(node)

    def _halves_caches(self, graph: ir.Graph) -> bool:
        """Whether there are caches, and none comes from a node that stays fp32 because it does not fit."""
        last = [_grown(value) for value in graph.outputs if is_cache(value)]
        through = MOVES | {"Concat", "RotaryEmbedding"}
        made = {
            node
            for each in last
            if each is not None
            for node in (each, *float_producers(each, None, through))
        }
        return bool(last) and not any(node.name in self.keep for node in made)


def _grown(value: ir.Value) -> ir.Node | None:
    """What gives a cache, or what it is the last places of."""
    node = value.producer()
    return first_input(node).producer() if node is not None and node.op_type == "Slice" else node


class ToBfloat16(ToHalf):
    """bf16, whose range is that of fp32: nothing overflows."""

    def __init__(self, policy: Policy = FUSED, keep: frozenset[str] = frozenset()) -> None:
        super().__init__(BF16, policy, keep)


class ToFloat16(ToHalf):
    """fp16, which ends at 65504: what has been measured beyond that belongs into `keep`."""

    def __init__(
        self, policy: Policy = HALF, keep: frozenset[str] = frozenset(), *, renamed: bool = False
    ) -> None:
        super().__init__(FP16, policy, keep, renamed=renamed)


def _origin(name: str) -> str:
    """The node that one of this name was made of by an `Editor`; the name itself where nothing was made."""
    return _MADE.sub("", name)


def _restored(node: ir.Node) -> list[ir.Node]:
    """What gives a quantised layer its numbers back."""
    producers = [value.producer() for value in node.inputs[:2] if value is not None]
    return [each for each in producers if each is not None and each.op_type == "DequantizeLinear"]


def _bound_masks(graph: ir.Graph, chosen: dict[ir.Node, None], dtype: ir.DataType) -> None:
    """Keep masks that meet scores of half precision finite; one that all layers share is bounded once."""
    bounded: dict[ir.Value, ir.Value] = {}
    for node in list(graph):
        for index, value in _masks(node, chosen):
            if value not in bounded:
                edit = Editor(node)
                bounded[value] = edit.op("Max", value, edit.number(_FAR_BELOW[dtype], FP32))
                bounded[value].shape = value.shape
            node.replace_input_with(index, bounded[value])


def _masks(node: ir.Node, chosen: dict[ir.Node, None]) -> list[tuple[int, ir.Value]]:
    """The inputs of a chosen node, by index, that are masks of scores in fp32."""
    if node not in chosen:
        return []
    if node.op_type == "Attention":
        masks = list(enumerate(node.inputs))[_MASK_OF_ATTENTION : _MASK_OF_ATTENTION + 1]
    elif node.op_type == "Add" and any(user.op_type == "Softmax" for user in node.outputs[0].consumers()):
        masks = [
            (index, value)
            for index, value in enumerate(node.inputs)
            if not float_producers(node, index) & chosen.keys()
        ]
    else:
        return []
    return [
        (index, value)
        for index, value in masks
        if value is not None and value.dtype == FP32 and not is_constant(value)
    ]
