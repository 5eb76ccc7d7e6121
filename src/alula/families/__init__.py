"""Checkpoint folders, GGUF files and ready-made ONNX files in, ONNX graphs out: one module per family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alula.core.errors import MissingExtraError
from alula.core.model import ModelSpec
from alula.families.checkpoint import (
    TOKENIZER,
    Checkpoint,
    is_gguf,
    locate,
    open_checkpoint,
    refuse_without_tokenizer,
)
from alula.families.hunyuan import with_compat
from alula.families.onnx_file import FAMILY as ONNX
from alula.families.onnx_file import Original, is_onnx, only_as_it_is, original
from alula.families.shipped import SHIPPED
from alula.families.stated import parse_inputs
from alula.families.tasks import describe, packs, refuse_unless_packs, with_tokens
from alula.families.text_files import text_files, write_text_files
from alula.families.writing import weights_of

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "ONNX",
    "SHIPPED",
    "TOKENIZER",
    "Checkpoint",
    "Original",
    "describe",
    "is_gguf",
    "is_onnx",
    "locate",
    "only_as_it_is",
    "open_checkpoint",
    "original",
    "packs",
    "parse_inputs",
    "refuse_unless_packs",
    "refuse_without_tokenizer",
    "text_files",
    "weights_of",
    "with_compat",
    "with_tokens",
    "write",
    "write_text_files",
]


def write(
    checkpoint: Checkpoint, spec: ModelSpec, part_name: str, opset: int = 23, *, packed: bool = False
) -> ir.Model:
    """Write one part in memory; its weights are read from the checkpoint when the model is saved.

    `packed`, an encoder takes several texts in a row: `core/packing.py`.
    """
    if spec.family == "traced":
        from alula.families import traced  # noqa: PLC0415 - it imports torch

        return traced.write(checkpoint, spec, part_name, opset)
    try:
        from alula.families import imported  # noqa: PLC0415 - onnx_ir is for building only
        from alula.families.assemble import assemble  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("writing a graph", "build") from error
    if is_onnx(checkpoint):
        return imported.write(checkpoint, spec, part_name, opset)
    return assemble(checkpoint, spec, part_name, opset, packed=packed)
