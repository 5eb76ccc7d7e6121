"""Graphs on disk: ONNX files with their weights beside them once they are large."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir
from google.protobuf.message import DecodeError

from alula.core.errors import InputError
from alula.core.graph import Graph
from alula.core.tensor import Dim, TensorSpec

INLINE_BYTES = 16 << 20
"""Weights of up to this many bytes in total stay inside the ONNX file."""

# Engines read shapes and axes while they parse, so small tensors never leave the file.
_SMALL_TENSOR_BYTES = 1024
_CHUNK_BYTES = 1 << 20


def save(model: ir.Model, path: Path, precision: str) -> Graph:
    """Write the model to `path`, and to `NAME.onnx.data` beside it when its weights are large.

    Both files are written aside and renamed. The model is left as it was: lazy tensors stay lazy, and each is
    in memory only while it is written.
    """
    data = data_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _aside(path) as folder:
        written = folder / path.name
        external = data.name if weight_bytes(model) > INLINE_BYTES else None
        whole = model if external else _inlined(model)
        ir.save(whole, written, external_data=external, size_threshold_bytes=_SMALL_TENSOR_BYTES)
        if external is None:
            data.unlink(missing_ok=True)
        else:
            (folder / data.name).replace(data)
        written.replace(path)
    return describe(model, path, precision)


def load(path: Path) -> ir.Model:
    """Read a model; weights in its data file are memory-mapped and found from any working folder."""
    path = path.resolve()
    try:
        model = ir.load(path)
    except FileNotFoundError as error:
        raise InputError(f"no graph at {path}") from error
    except (DecodeError, ValueError, ir.serde.SerdeError) as error:
        raise InputError(f"{path}: not a readable ONNX file: {error}") from error
    for tensor in _external_tensors(model):
        _refuse_unless_whole(tensor)
    return model


def describe(model: ir.Model, path: Path, precision: str) -> Graph:
    """The facts of the model that lies at `path`."""
    return Graph(
        path=path,
        digest=digest(path),
        opset=model.opset_imports[""],
        nodes=sum(1 for _ in model.graph.all_nodes()),
        precision=precision,
        inputs=tuple(_spec(value) for value in model.graph.inputs),
        outputs=tuple(_spec(value) for value in model.graph.outputs),
    )


def digest(path: Path) -> str:
    """The SHA-256 over the ONNX file and its data file, whatever folder they are in."""
    found = hashlib.sha256()
    for part in (path, data_path(path)):
        if part.exists():
            with part.open("rb") as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    found.update(chunk)
    return found.hexdigest()


def data_path(path: Path) -> Path:
    """Where the weights of the ONNX file at `path` are when they are not inside it."""
    return path.with_name(f"{path.name}.data")


def weight_bytes(model: ir.Model) -> int:
    """How many bytes all initializers have together."""
    return sum(tensor.nbytes for tensor in _tensors(model))


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """A folder beside `path`, so that renaming out of it stays on one file system."""
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _inlined(model: ir.Model) -> ir.Model:
    """A copy that holds the weights which lie in files elsewhere: else it would name these, beside itself."""
    if not any(True for _ in _external_tensors(model)):
        return model
    copy = model.clone()
    for graph in copy.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = ir.Tensor(value.const_value.numpy(), name=value.name)
    return copy


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value


def _external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    for tensor in _tensors(model):
        if isinstance(tensor, ir.ExternalTensor):
            yield tensor


def _refuse_unless_whole(tensor: ir.ExternalTensor) -> None:
    end = (tensor.offset or 0) + tensor.nbytes
    try:
        size = os.path.getsize(tensor.path)
    except FileNotFoundError as error:
        raise InputError(f"no data file at {tensor.path}; tensor {tensor.name!r} is in it") from error
    if size < end:
        raise InputError(
            f"{tensor.path} is cut short: {size} bytes, but tensor {tensor.name!r} ends at byte {end}"
        )


def _spec(value: ir.Value) -> TensorSpec:
    if value.name is None or value.dtype is None or value.shape is None:
        raise InputError(f"{value.name}: a graph's inputs and outputs need a name, a dtype and a shape")
    shape = tuple(_dim(value.name, dim) for dim in value.shape)
    return TensorSpec(name=value.name, dtype=value.dtype.numpy().name, shape=shape)


def _dim(name: str, dim: int | ir.SymbolicDim) -> Dim:
    if isinstance(dim, int):
        return dim
    if dim.value is None:
        raise InputError(f"{name}: every axis needs a size or a name")
    return dim.value
