"""bf16 written into a graph: which nodes compute in it, and the casts between them and the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError, PreconditionError
from onnx_ir.passes.common import ShapeInferencePass

from alula.graphs.passes.edit import Editor, first_input, hand_over, is_constant, replace_constant, retype

_LARGEST_BF16 = 3.3895313892515355e38
FP32, BF16 = ir.DataType.FLOAT, ir.DataType.BFLOAT16


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What computes in bf16 besides the products of linears and of attention.

    Norms, masks, pooling, normalisation and the last linear before an output never do. `residual` is the sum that
    a norm takes, `scores` that of scores and mask and its softmax. `tables` only stores the embedding tables in
    bf16, which halves them; their sum is fp32.
    """

    bias: bool = False
    activation: bool = False
    residual: bool = False
    scores: bool = False
    tables: bool = False


PRODUCTS = Policy()
BROAD = Policy(bias=True, activation=True, tables=True)
# What OpenVINO gets. With the softmax in bf16 it runs attention as one snippet that keeps products and sums in fp32
# inside; with casts around an fp32 softmax it runs products, softmax and twelve conversions one by one.
# MiniLM on two cores of a Xeon with AMX (family 6, model 207), 110 texts and random rows, worst and mean cosine to
# PyTorch fp32, then times as fast as PyTorch eager at 1x32, 1x128, 8x128:
#   residual sums alone   0.999704 0.999939   3.22 2.56 3.13
#   scores as well        0.999631 0.999939   3.52 2.90 3.38
#   norms as well         0.999729 0.999895   3.50 2.92 3.30   OpenVINO converts around a norm either way
#   its own bf16 mode     0.999737 0.999941   3.81 3.12 3.59
# The tables take the file from 69 MB to 46 MB.
FUSED = Policy(bias=True, activation=True, residual=True, scores=True, tables=True)

# Lower than any score, and within bf16, where the lowest fp32 number would become -inf.
_FAR_BELOW = -1e30

# They move numbers and do not change them: they stay in whatever precision comes in.
_MOVES = frozenset(
    {
        "Reshape",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Split",
        "Slice",
        "Expand",
        "Flatten",
        "Identity",
        "Gather",
    }
)
_ACTIVATIONS = frozenset({"Gelu", "Relu", "Tanh", "Sigmoid", "Erf", "Elu", "HardSwish", "Swish"})
_PRODUCTS = frozenset({"MatMul", "Gemm"})
_TO_SOFTMAX = frozenset(
    {*_MOVES, "Add", "Sub", "Mul", "Div", "Where", "GatherElements", "Cast", "Tanh", "Max", "Min", "Softmax"}
)


class ToBfloat16(InPlacePass):
    """Rewrites an fp32 graph to bf16 where the policy says so; inputs and outputs keep their types."""

    def __init__(self, policy: Policy = FUSED) -> None:
        super().__init__()
        self.policy = policy

    def requires(self, model: ir.Model) -> None:
        """Attention is written out, since its mask stays fp32; fp32 is the only float type."""
        if any(True for _ in model.graph.subgraphs()):
            raise PreconditionError("a graph with branches or loops is not supported")
        if found := [node for node in model.graph if node.op_type == "Attention"]:
            raise PreconditionError(f"{found[0].name}: Attention has to be decomposed first")
        ShapeInferencePass()(model)
        for node in model.graph:
            for value in node.outputs:
                if value.dtype is None:
                    raise PreconditionError(f"{node.name}: the dtype of {value.name} is not known")
                if value.dtype.is_floating_point() and value.dtype != FP32:
                    raise PreconditionError(
                        f"{node.name}: {value.name} is {value.dtype.name}, expected FLOAT"
                    )

    def call(self, model: ir.Model) -> PassResult:
        """Decide for all nodes, then cast between them."""
        chosen = {node for node in model.graph if _is_product(node)}
        chosen |= _followers(model.graph, chosen, self.policy)
        _bound_masks(model.graph, chosen)
        casts = _Casts()
        for node in list(model.graph):
            if node in chosen or (node.op_type in _MOVES and first_input(node).dtype == BF16):
                casts.to_bf16(node)
            else:
                casts.to_fp32(node)
        casts.restore_outputs(model.graph)
        if self.policy.tables:
            for node in list(model.graph):
                _store_table(node)
        return PassResult(model, bool(chosen))

    def ensures(self, model: ir.Model) -> None:
        """Norms are fp32, softmax unless the policy says otherwise, and the outputs."""
        kept = {"LayerNormalization"} if self.policy.scores else {"LayerNormalization", "Softmax"}
        for node in model.graph:
            if node.op_type in kept and node.outputs[0].dtype != FP32:
                raise PostconditionError(f"{node.name}: {node.op_type} is {node.outputs[0].dtype}")
        for value in model.graph.outputs:
            if value.dtype == BF16:
                raise PostconditionError(f"output {value.name} is bf16")


def _is_product(node: ir.Node) -> bool:
    """Whether this is a linear, the last one excepted, or one of attention's two products."""
    if node.op_type not in _PRODUCTS or first_input(node).dtype != FP32:
        return False
    if is_constant(node.inputs[1]):
        return not _reaches_output(node)
    return _reaches_softmax(node) or _comes_from_softmax(node)


def _reaches_output(node: ir.Node) -> bool:
    """Whether a result gets out without passing a norm or another linear."""
    return any(
        value.is_graph_output()
        for each in _downstream(node, lambda n: n.op_type != "LayerNormalization" and not _is_linear(n))
        for value in each.outputs
    )


def _is_linear(node: ir.Node) -> bool:
    return node.op_type in _PRODUCTS and is_constant(node.inputs[1])


def _reaches_softmax(node: ir.Node) -> bool:
    return any(each.op_type == "Softmax" for each in _downstream(node, lambda n: n.op_type in _TO_SOFTMAX))


def _comes_from_softmax(node: ir.Node) -> bool:
    value: ir.Value | None = first_input(node)
    while value is not None and (producer := value.producer()) is not None:
        if producer.op_type == "Softmax":
            return True
        if producer.op_type not in {*_MOVES, "Mul", "Cast", "Where"}:
            return False
        value = producer.inputs[1] if producer.op_type == "Where" else producer.inputs[0]
        if producer.op_type == "Where" and is_constant(value):
            value = producer.inputs[2]
    return False


def _downstream(node: ir.Node, through: Callable[[ir.Node], bool]) -> Iterator[ir.Node]:
    """The node and whatever its results reach through such nodes."""
    seen, waiting = {node}, [node]
    while waiting:
        current = waiting.pop()
        yield current
        for value in current.outputs:
            for user in value.consumers():
                if user not in seen and through(user):
                    seen.add(user)
                    waiting.append(user)


def _followers(graph: ir.Graph, products: set[ir.Node], policy: Policy) -> set[ir.Node]:
    """Biases, activations and residual sums behind chosen nodes, as far as the policy goes."""
    found = set(products)
    for node in graph:
        if _float_producers(node) & found and _allowed(node, policy):
            found.add(node)
    return found - products


def _float_producers(node: ir.Node, index: int | None = None) -> set[ir.Node]:
    """The nodes whose results come in, at one input or at any, seen through those that only move numbers."""
    producers = set()
    for value in node.inputs if index is None else node.inputs[index : index + 1]:
        producer = value.producer() if value is not None else None
        while producer is not None and producer.op_type in _MOVES:
            producer = first_input(producer).producer()
        if producer is not None:
            producers.add(producer)
    return producers


def _bound_masks(graph: ir.Graph, chosen: set[ir.Node]) -> None:
    """Keep masks that are added to bf16 scores finite; one that all layers share is bounded once."""
    bounded: dict[ir.Value, ir.Value] = {}
    for node in list(graph):
        if node not in chosen or node.op_type != "Add" or not _feeds(node, "Softmax"):
            continue
        for index, value in enumerate(node.inputs):
            if value is None or is_constant(value) or _float_producers(node, index) & chosen:
                continue
            if value not in bounded:
                edit = Editor(node)
                bounded[value] = edit.op("Max", value, edit.number(_FAR_BELOW, FP32))
                bounded[value].shape = value.shape
            node.replace_input_with(index, bounded[value])


def _feeds(node: ir.Node, op_type: str) -> bool:
    return any(user.op_type == op_type for user in node.outputs[0].consumers())


def _allowed(node: ir.Node, policy: Policy) -> bool:
    if node.op_type in _ACTIVATIONS:
        return policy.activation
    if node.op_type == "Softmax":
        return policy.scores
    if node.op_type != "Add":
        return False
    if any(is_constant(value) for value in node.inputs):
        return policy.bias
    return (policy.residual and _feeds(node, "LayerNormalization")) or (
        policy.scores and _feeds(node, "Softmax")
    )


class _Casts:
    """Casts of one graph: each value has at most one in each direction."""

    def __init__(self) -> None:
        self._made: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def to_bf16(self, node: ir.Node) -> None:
        """Feed a node bf16 only."""
        count = 1 if node.op_type in _MOVES else len(node.inputs)
        for index, value in enumerate(node.inputs[:count]):
            if value is not None and value.dtype == FP32:
                self._feed(node, index, BF16)
        for value in node.outputs:
            retype(value, BF16)

    def to_fp32(self, node: ir.Node) -> None:
        """Feed a node fp32 only."""
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype == BF16:
                self._feed(node, index, FP32)

    def restore_outputs(self, graph: ir.Graph) -> None:
        """Give the graph's outputs their fp32 back."""
        for value in list(graph.outputs):
            producer = value.producer()
            if value.dtype == BF16 and producer is not None:
                cast = _cast(value, FP32)
                graph.insert_after(producer, cast)
                users = [(user, index) for user, index in value.uses() if user is not cast]
                hand_over(value, cast.outputs[0])
                retype(value, BF16)
                cast.replace_input_with(0, value)
                for user, index in users:
                    user.replace_input_with(index, value)

    def _feed(self, node: ir.Node, index: int, dtype: ir.DataType) -> None:
        value = node.inputs[index]
        assert value is not None
        if (value, dtype) not in self._made:
            if is_constant(value):
                self._made[value, dtype] = replace_constant(node, index, dtype.name.lower(), _to_bf16, dtype)
                return
            cast = _cast(value, dtype)
            graph = node.graph
            assert isinstance(graph, ir.Graph)
            graph.insert_before(node, cast)
            self._made[value, dtype] = cast.outputs[0]
            self._made[cast.outputs[0], FP32 if dtype == BF16 else BF16] = value
        old = value
        node.replace_input_with(index, self._made[value, dtype])
        if is_constant(old) and not old.uses() and isinstance(node.graph, ir.Graph):
            node.graph.initializers.pop(str(old.name), None)


def _cast(value: ir.Value, dtype: ir.DataType) -> ir.Node:
    name = f"{value.name}/{'bf16' if dtype == BF16 else 'fp32'}"
    cast = ir.node("Cast", [value], {"to": int(dtype)}, name=name)
    output = cast.outputs[0]
    output.name, output.shape = name, value.shape
    retype(output, dtype)
    return cast


def _to_bf16(array: np.ndarray) -> np.ndarray:
    """Round to nearest; what bf16 cannot reach stays finite, since masks hold the lowest fp32 number."""
    rounded = array.astype(ml_dtypes.bfloat16)
    if np.isinf(rounded).any():
        beyond = np.isinf(rounded) & np.isfinite(array)
        rounded[beyond] = np.clip(array[beyond], -_LARGEST_BF16, _LARGEST_BF16)
    return rounded


def _store_table(node: ir.Node) -> None:
    """Let a Gather read its fp32 table from bf16, if nobody else reads it."""
    if node.op_type != "Gather" or not is_constant(node.inputs[0]):
        return
    table, output = first_input(node), node.outputs[0]
    if table.dtype != FP32 or len(table.uses()) != 1 or output.is_graph_output():
        return
    replace_constant(node, 0, "bfloat16", _to_bf16, BF16)
    retype(output, BF16)
    cast = _cast(output, FP32)
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    graph.insert_after(node, cast)
    for user, index in list(output.uses()):
        if user is not cast:
            user.replace_input_with(index, cast.outputs[0])
