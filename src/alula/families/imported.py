"""A ready-made ONNX file as a graph of ours: its opset raised, constants and names put in order, axes named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir
from onnx import version_converter
from onnx_ir.passes import Sequential
from onnx_ir.passes.common import (
    ClearMetadataAndDocStringPass,
    DeduplicateInitializersPass,
    LiftConstantsToInitializersPass,
    NameFixPass,
    OutputFixPass,
    RemoveUnusedNodesPass,
    RemoveUnusedOpsetsPass,
    ShapeInferencePass,
)

from alula.core.errors import InputError
from alula.core.model import ModelSpec, Part
from alula.families.builder import declare, ir_version_of
from alula.families.checkpoint import Checkpoint, first_line
from alula.families.onnx_file import read
from alula.families.tensors import prepare

_SMALL_BYTES = 1024
"""Constants up to here are seen by the converter of opsets: axes, sizes, bounds."""


def write(checkpoint: Checkpoint, spec: ModelSpec, part_name: str, opset: int) -> ir.Model:
    """The file as a model in memory that the passes take; its weights stay where they are until it is saved."""
    model = read(checkpoint.root)
    prepare(model)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    model = _at_opset(model, checkpoint.root, opset)
    _tidy(model)
    _declare(model, spec.part(part_name))
    _infer(model)
    _unwrap_softmax(model.graph)
    RemoveUnusedNodesPass()(model)
    NameFixPass()(model)
    return model


def _at_opset(model: ir.Model, file: Path, opset: int) -> ir.Model:
    found = model.opset_imports.get("", model.opset_imports.get("ai.onnx"))
    # A file that is newer than what graphs are written in stays as new as it is.
    opset = max(opset, found or 0)
    version = ir_version_of(opset)
    try:
        converted = model if found == opset else _converted(model, opset)
    except Exception as error:  # the converter raises what its C++ does
        raise InputError(f"{file} cannot be converted to opset {opset}: {first_line(error)}") from error
    converted.ir_version, converted.producer_name, converted.producer_version = version, "alula", None
    return converted


def _converted(model: ir.Model, opset: int) -> ir.Model:
    """Raised by ONNX's own converter, which takes no more than 2 GiB and none that lie outside: it sees no weights."""
    _load_small(model)
    # Before version 4 of the format constants had to be inputs as well.
    model.ir_version = max(model.ir_version, 4)
    with _without_weights(model) as weights:
        proto = ir.serde.serialize_model(model)
    raised = ir.serde.deserialize_model(version_converter.convert_version(proto, opset))
    for value in list(raised.graph.inputs):
        if value.name in weights:
            raised.graph.inputs.remove(value)
            value.const_value = weights[value.name]
            raised.graph.register_initializer(value)
    return raised


def _load_small(model: ir.Model) -> None:
    """What the converter is to see, brought in from outside: it would keep the name of a file and not its folder."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and (
                graph is not model.graph or tensor.nbytes <= _SMALL_BYTES
            ):
                value.const_value = ir.Tensor(tensor.numpy().copy(), name=tensor.name)


@contextmanager
def _without_weights(model: ir.Model) -> Iterator[dict[str, ir.TensorProtocol]]:
    """The model with its large constants as inputs, while the block runs; they are given by name."""
    graph = model.graph
    large = {
        name: value
        for name, value in graph.initializers.items()
        if value.const_value is not None and value.const_value.nbytes > _SMALL_BYTES
    }
    weights: dict[str, ir.TensorProtocol] = {}
    for name, value in large.items():
        assert value.const_value is not None
        weights[name] = value.const_value
        value.shape, value.dtype = ir.Shape(value.const_value.shape.numpy()), value.const_value.dtype
        graph.initializers.pop(name)
        graph.inputs.append(value)
    yield weights
    for name, value in large.items():
        graph.inputs.remove(value)
        value.const_value = weights[name]
        graph.register_initializer(value)


def _tidy(model: ir.Model) -> None:
    """Constants as initializers, one copy of each, and nothing that is not used."""
    Sequential(
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        DeduplicateInitializersPass(),
        OutputFixPass(),
        RemoveUnusedNodesPass(),
        RemoveUnusedOpsetsPass(),
        ClearMetadataAndDocStringPass(),
    )(model)
    _drop_identities(model.graph)
    model.metadata_props.clear()


def _drop_identities(graph: ir.Graph) -> None:
    """Read what they read, outside of branches and where no output is another one by a second name."""
    for node in list(graph):
        source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
        if node.op_type != "Identity" or source is None:
            continue
        if not result.is_graph_output():
            result.replace_all_uses_with(source)
            graph.remove(node, safe=True)
        elif source.producer() is not None and not source.is_graph_output():
            name = result.name
            result.replace_all_uses_with(source, replace_graph_outputs=True)
            graph.remove(node, safe=True)
            source.name = name


def _infer(model: ir.Model) -> None:
    """Shapes in our axes; those that the file states are in its own."""
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None
    ShapeInferencePass()(model)


def _unwrap_softmax(graph: ir.Graph) -> None:
    """Take away what the converter puts around a softmax of before opset 13, unless it means several axes at once.

    It knows no ranks: shapes that are computed are not followed in graphs that old.
    """
    for node in list(graph):
        if node.op_type not in {"Softmax", "LogSoftmax"} or len(node.outputs[0].uses()) != 1:
            continue
        ((reshape, _),) = node.outputs[0].uses()
        flat = _producer(node, 0, "Flatten")
        shape = _producer(reshape, 1, "Shape") if reshape.op_type == "Reshape" else None
        if flat is None or shape is None or shape.inputs[0] is not flat.inputs[0]:
            continue
        source, result, kept = flat.inputs[0], reshape.outputs[0], node.outputs[0]
        if (
            source is None
            or source.shape is None
            or flat.attributes.get_int("axis", 1) != len(source.shape) - 1
        ):
            continue
        node.replace_input_with(0, source)
        name, kept.shape, kept.type = result.name, result.shape, result.type
        result.replace_all_uses_with(kept, replace_graph_outputs=True)
        graph.remove(reshape, safe=True)
        kept.name = name


def _producer(node: ir.Node, index: int, kind: str) -> ir.Node | None:
    """The node of that kind that gives an input."""
    value = node.inputs[index]
    found = value.producer() if value is not None else None
    return found if found is not None and found.op_type == kind else None


def _declare(model: ir.Model, part: Part) -> None:
    """Give inputs and outputs the names of the part, which nothing inside may have."""
    taken = {spec.name for spec in (*part.inputs, *part.outputs)}
    model.graph.name = part.name
    for node in model.graph:
        for value in node.outputs:
            if value.name in taken:
                value.name = f"{value.name}_within"
    declare(model.graph, part)
