"""A ready-made ONNX file as a graph of ours: its opset raised, constants and names put in order, axes named."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import version_converter
from onnx_ir.passes import Sequential
from onnx_ir.passes.common import (
    ClearMetadataAndDocStringPass,
    DeduplicateInitializersPass,
    IdentityEliminationPass,
    LiftConstantsToInitializersPass,
    NameFixPass,
    RemoveInitializersFromInputsPass,
    RemoveUnusedNodesPass,
    RemoveUnusedOpsetsPass,
    ShapeInferencePass,
)

from alula.core.errors import InputError
from alula.core.model import ModelSpec, Part
from alula.families.builder import declare, ir_version_of
from alula.families.checkpoint import Checkpoint, first_line


def write(checkpoint: Checkpoint, spec: ModelSpec, part_name: str, opset: int) -> ir.Model:
    """The file as a model in memory that the passes take."""
    model = _at_opset(checkpoint.root, opset)
    _tidy(model)
    _declare(model, spec.part(part_name))
    _infer(model)
    _unwrap_softmax(model.graph)
    RemoveUnusedNodesPass()(model)
    NameFixPass()(model)
    return model


def _at_opset(file: Path, opset: int) -> ir.Model:
    version = ir_version_of(opset)
    try:
        loaded = onnx.load(file)
        found = next((one.version for one in loaded.opset_import if one.domain in {"", "ai.onnx"}), None)
        converted = loaded if found == opset else version_converter.convert_version(loaded, opset)
    except Exception as error:  # the converter raises what its C++ does
        raise InputError(f"{file} cannot be converted to opset {opset}: {first_line(error)}") from error
    model = ir.serde.deserialize_model(converted)
    model.ir_version, model.producer_name, model.producer_version = version, "alula", None
    return model


def _tidy(model: ir.Model) -> None:
    """Constants as initializers, one copy of each, and nothing that is not used."""
    Sequential(
        RemoveInitializersFromInputsPass(),
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        DeduplicateInitializersPass(),
        IdentityEliminationPass(),
        RemoveUnusedNodesPass(),
        RemoveUnusedOpsetsPass(),
        ClearMetadataAndDocStringPass(),
    )(model)
    model.metadata_props.clear()


def _infer(model: ir.Model) -> None:
    """Shapes in our axes; those that the file states are in its own."""
    for node in model.graph:
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
