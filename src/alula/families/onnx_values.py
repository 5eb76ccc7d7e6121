"""What an ONNX file says of its inputs and outputs, and the names that its metadata gives to classes."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alula.core.errors import InputError

if TYPE_CHECKING:
    import onnx_ir as ir

LABEL_KEYS = ("character", "names", "labels", "classes", "id2label")
"""Keys of metadata that name classes: PaddlePaddle's, Ultralytics', and what others write."""

_MOST_BYTES = 16 << 20


def rank(value: ir.Value) -> int | None:
    """How many axes there are, if that is said."""
    return None if value.shape is None else len(value.shape)


def size(value: ir.Value, axis: int) -> int | None:
    """The size of an axis, if it is a fixed one; some exporters write -1 or 0 for one that is open."""
    dim = None if value.shape is None else value.shape[axis]
    return dim if isinstance(dim, int) and dim > 0 else None


def is_float(value: ir.Value) -> bool:
    """Whether it is float32."""
    return value.dtype is not None and value.dtype.name == "FLOAT"


def shown(model: ir.Model) -> str:
    """Inputs, outputs and metadata, as they are."""
    sides = []
    for what, values in (("inputs", model.graph.inputs), ("outputs", model.graph.outputs)):
        named = (
            f"{v.name} {v.dtype.name if v.dtype else 'of no type'} {v.shape or 'of no shape'}" for v in values
        )
        sides.append(f"{what} {', '.join(named) or 'none'}")
    return "; ".join((*sides, f"metadata {', '.join(sorted(model.metadata_props)) or 'none'}"))


def read_labels_file(path: Path) -> tuple[str, ...]:
    """A label a line; JSON where the file ends in .json."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"--labels {path} has more than {_MOST_BYTES} bytes; expected a label a line")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--labels {path} cannot be read: {error}") from error
    found = _parsed(text) if path.suffix.lower() == ".json" else lines(text)
    if not found:
        raise InputError(f"--labels {path} holds no labels; expected a label a line, or a JSON list of them")
    return tuple(found)


def labels_of(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """The labels of the first key of metadata that names some; none where no key does."""
    return next((found for key in LABEL_KEYS if key in metadata and (found := _written(metadata[key]))), ())


def lines(text: str) -> list[str]:
    """A label a line; other line ends than the line feed are characters themselves."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _written(text: str) -> tuple[str, ...]:
    found = _parsed(text)
    return tuple(lines(text)) if found is None else found


def _parsed(text: str) -> tuple[str, ...] | None:
    """The labels of a list or a mapping by number, in JSON or as Python writes it; None for anything else."""
    for read in (json.loads, ast.literal_eval):
        try:
            value: Any = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, dict):
            return _numbered(value)
        if isinstance(value, (list, tuple)):
            return _words(value)
    return None


def _numbered(value: Mapping[Any, Any]) -> tuple[str, ...]:
    """Names by number; the other way round where numbers are the values."""
    pairs: Sequence[tuple[Any, Any]] = list(value.items())
    if all(type(number) is int for _, number in pairs):
        pairs = [(number, name) for name, number in pairs]
    try:
        by_number = {int(number): name for number, name in pairs}
    except (ValueError, TypeError):
        return ()
    if sorted(by_number) != list(range(len(pairs))):
        return ()
    return _words(by_number[at] for at in range(len(pairs)))


def _words(values: Iterable[Any]) -> tuple[str, ...]:
    found = tuple(values)
    return tuple(str(word) for word in found) if all(isinstance(word, (str, int)) for word in found) else ()
