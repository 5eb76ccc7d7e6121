"""Which nodes of a graph compute in half precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir

from alula.graphs.passes.caches import is_cache
from alula.graphs.passes.casts import FP32, MOVES
from alula.graphs.passes.edit import first_input, is_constant


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What computes in half precision besides the products of linears and of attention.

    Norms, masks, pooling, normalisation and the last linear before an output never do. `residual` is the sum that
    a norm takes, `scores` that of scores and mask and its softmax. `maps` are convolutions and what follows them:
    sums, products, concatenations. `attention` takes the Attention operator whole, its softmax as the engine's kernel
    has it. `writing` is what a decoder keeps from step to step, inputs and outputs among it, and the head that gives
    logits. `quantised` are layers that multiply int8: what they give, and what is restored for them (opset 19 at
    least). `tables` only stores the embedding tables in half precision, which halves them; their sum is fp32.
    """

    bias: bool = False
    activation: bool = False
    residual: bool = False
    scores: bool = False
    maps: bool = False
    attention: bool = False
    writing: bool = False
    quantised: bool = False
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
FUSED = Policy(bias=True, activation=True, residual=True, scores=True, maps=True, tables=True)
# fp16 ends at 65504. Sums that a network carries from layer to layer outgrow it, and so do squares in norms.
# Rounded after every node, in ONNX Runtime: MiniLM, 16 texts of 3 to 182 tokens, worst and mean of 1 - cosine 6.6e-7
# and 3.6e-7; EfficientNet-lite0 gives 63 of 64 photographs the class of fp32, open_nsfw 64 of 64; a recogniser
# (PP-OCRv4) reads 48 of 48 lines the same. Nothing of theirs measures above 200.
HALF = Policy(bias=True, activation=True, maps=True, tables=True)
# For TensorRT 8.6, which compiles a transformer as one region and has a kernel for attention where products, softmax
# and what lies between are all fp16. What a network carries along may outgrow fp16, so its sums are measured with it.
REGION = replace(HALF, residual=True, scores=True)
# For compilers with a kernel for attention: TensorRT from 10.14 on, TensorRT-RTX. They refuse `softmax_precision`.
WHOLE_ATTENTION = replace(HALF, attention=True)

NORMS = frozenset({"LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization"})
_ACTIVATIONS = frozenset(
    {
        *("Gelu", "Relu", "Tanh", "Sigmoid", "Erf", "Elu", "HardSwish", "Swish"),
        *("Clip", "HardSigmoid", "LeakyRelu", "PRelu", "Mish"),
    }
)
_PRODUCTS = frozenset({"MatMul", "Gemm"})
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_MAPS = frozenset({"Add", "Mul", "Concat", "BatchNormalization", "Resize", "Pad"})
# Behind them a map is a row of tokens.
_TO_TOKENS = frozenset({"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"})
_TO_SOFTMAX = frozenset(
    {*MOVES, "Add", "Sub", "Mul", "Div", "Where", "GatherElements", "Cast", "Tanh", "Max", "Min", "Softmax"}
)


def chosen_nodes(
    graph: ir.Graph, policy: Policy, may_change: Callable[[ir.Node], bool]
) -> dict[ir.Node, None]:
    """Products, then what follows them as far as the policy goes, in order; of these, those that may change."""
    found: set[ir.Node] = set()
    maps: set[ir.Node] = set()
    for node in graph:
        of_maps = bool(float_producers(node, through=MOVES - _TO_TOKENS) & maps)
        if _is_product(node, policy):
            of_maps = node.op_type in _CONVOLUTIONS
        elif not (float_producers(node) & found and _allowed(node, policy, of_maps)):
            continue
        if may_change(node):
            found.add(node)
            if of_maps:
                maps.add(node)
    return {node: None for node in graph if node in found}


def is_layer(node: ir.Node) -> bool:
    """Whether this is a linear or a convolution with weights of its own."""
    return node.op_type in _PRODUCTS | _CONVOLUTIONS and (is_constant(node.inputs[1]) or is_quantised(node))


def is_head(node: ir.Node) -> bool:
    """Whether this gives the logits of a decoder, by weights of its own or by its table of embeddings."""
    graph = node.graph
    if node.op_type != "MatMul" or graph is None or not any(is_cache(value) for value in graph.outputs):
        return False
    return (is_constant(node.inputs[1]) or table_of(node) is not None) and reaches_output(node)


def table_of(node: ir.Node) -> ir.Value | None:
    """The constant that a product reads the other way round, and others as it is; None if there is none."""
    turned = node.inputs[1].producer() if len(node.inputs) > 1 and node.inputs[1] is not None else None
    table = turned.inputs[0] if turned is not None and turned.op_type == "Transpose" else None
    return table if is_constant(table) else None


def is_quantised(node: ir.Node) -> bool:
    """Whether this multiplies by a constant that DequantizeLinear restores."""
    value = node.inputs[1] if len(node.inputs) > 1 else None
    restored = value.producer() if value is not None else None
    return (
        node.op_type in _PRODUCTS | _CONVOLUTIONS
        and restored is not None
        and restored.op_type == "DequantizeLinear"
        and is_constant(restored.inputs[0])
    )


def float_producers(node: ir.Node, index: int | None = None, through: frozenset[str] = MOVES) -> set[ir.Node]:
    """The nodes whose results come in, at one input or at any, seen through those that only move numbers."""
    producers = set()
    for value in node.inputs if index is None else node.inputs[index : index + 1]:
        producer = value.producer() if value is not None else None
        while producer is not None and producer.op_type in through:
            producer = first_input(producer).producer()
        if producer is not None:
            producers.add(producer)
    return producers


def _is_product(node: ir.Node, policy: Policy) -> bool:
    """Whether this is a layer, the last one excepted, attention, or one of its two products."""
    if node.op_type == "Attention":
        return policy.attention and first_input(node).dtype == FP32
    if node.op_type not in _PRODUCTS | _CONVOLUTIONS or first_input(node).dtype != FP32:
        return False
    if is_quantised(node) and not policy.quantised:
        return False
    if policy.writing and is_head(node):
        return True
    if is_layer(node):
        return (policy.maps or node.op_type in _PRODUCTS) and not reaches_output(node)
    return node.op_type in _PRODUCTS and (_reaches_softmax(node) or _comes_from_softmax(node))


def reaches_output(node: ir.Node) -> bool:
    """Whether a result gets out without passing a norm or another layer, and not as a cache."""
    return any(
        value.is_graph_output() and not is_cache(value)
        for each in _downstream(node, lambda n: n.op_type not in NORMS and not is_layer(n))
        for value in each.outputs
    )


def _reaches_softmax(node: ir.Node) -> bool:
    return any(
        each.op_type == "Softmax"
        for each in _downstream(node, lambda n: n.op_type in _TO_SOFTMAX or _joins_scores(n))
    )


def _joins_scores(node: ir.Node) -> bool:
    """Whether this puts products beside each other: scores of a cache, and of what is new."""
    producers = [value.producer() if value is not None else None for value in node.inputs]
    return node.op_type == "Concat" and all(
        each is not None and each.op_type in _PRODUCTS for each in producers
    )


def _comes_from_softmax(node: ir.Node) -> bool:
    value: ir.Value | None = first_input(node)
    while value is not None and (producer := value.producer()) is not None:
        if producer.op_type == "Softmax":
            return True
        if producer.op_type not in {*MOVES, "Mul", "Cast", "Where"}:
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


def _feeds(node: ir.Node, op_types: frozenset[str]) -> bool:
    return any(user.op_type in op_types for user in node.outputs[0].consumers())


def _keeps_scale(node: ir.Node) -> bool:
    """Whether what follows a map is one of the same scale, and no step of a norm that is written out."""
    if node.op_type == "Div":
        return is_constant(node.inputs[1])
    return node.op_type in _MAPS and len(set(node.inputs)) == len(node.inputs)


def _allowed(node: ir.Node, policy: Policy, of_maps: bool) -> bool:
    scales = node.op_type == "Div" and is_constant(node.inputs[1])
    if policy.scores and (scales or _joins_scores(node)) and _reaches_softmax(node):
        return True
    if node.op_type in _ACTIVATIONS or node.op_type == "Softmax":
        return policy.scores if node.op_type == "Softmax" else policy.activation
    if of_maps and policy.maps and _keeps_scale(node):
        return True
    if node.op_type != "Add":
        return False
    if any(is_constant(value) for value in node.inputs):
        return policy.bias
    return (policy.residual and _feeds(node, NORMS)) or (
        policy.scores and _feeds(node, frozenset({"Softmax"}))
    )
