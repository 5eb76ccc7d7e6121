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
from alula.families.builder import graph_input, ir_version_of
from alula.families.checkpoint import Checkpoint, first_line


def write(checkpoint: Checkpoint, spec: ModelSpec, part_name: str, opset: int) -> ir.Model:
    """The file as a model in memory that the passes take."""
    part = spec.part(part_name)
    model = _at_opset(checkpoint.root, opset)
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
    _declare(model, part)
    # Shapes the file states are of its own axes; what is inferred again is in ours.
    for node in model.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None
    ShapeInferencePass()(model)
    return model


def _at_opset(file: Path, opset: int) -> ir.Model:
    try:
        loaded = onnx.load(file)
        found = next((one.version for one in loaded.opset_import if one.domain in {"", "ai.onnx"}), None)
        converted = loaded if found == opset else version_converter.convert_version(loaded, opset)
    except Exception as error:  # the converter raises what its C++ does
        raise InputError(f"{file} cannot be converted to opset {opset}: {first_line(error)}") from error
    model = ir.serde.deserialize_model(converted)
    model.ir_version = ir_version_of(opset)
    model.producer_name, model.producer_version = "alula", None
    return model


def _declare(model: ir.Model, part: Part) -> None:
    """Give every node and value a name of its own; inputs and outputs names, types and axes of the part."""
    taken = {spec.name for spec in (*part.inputs, *part.outputs)}
    model.graph.name = part.name
    for node in model.graph:
        for value in node.outputs:
            if value.name in taken:
                value.name = f"{value.name}_within"
    for given, specs in ((model.graph.inputs, part.inputs), (model.graph.outputs, part.outputs)):
        for value, spec in zip(given, specs, strict=True):
            declared = graph_input(spec)
            value.name, value.type, value.shape = declared.name, declared.type, declared.shape
    NameFixPass()(model)
