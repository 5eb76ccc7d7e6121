"""Calls to a model of which only the tensors are known: their arrays, from files of numpy's and into one."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from alula.core.errors import InputError
from alula.core.tensor import Array, Feeds, TensorSpec, axis_sizes
from alula.data.dataset import Dataset, Example
from alula.data.kept import Kept
from alula.data.rows import BadRow, Fields, Row, Rows, listed, refuse_beyond, shown

ENDINGS = (".npz", ".npy")

MAX_CALLS = 10_000
"""Each is run once per precision, and what the reference gives for it is kept."""


def read_feeds(path: Path, inputs: Sequence[TensorSpec]) -> Feeds:
    """The arrays of one file, by the names of the inputs; the error names the file."""
    try:
        return feeds_of(path, inputs)
    except BadRow as error:
        raise InputError(f"{shown(path)}: {error}") from error


def feeds_of(path: Path, inputs: Sequence[TensorSpec]) -> Feeds:
    """The arrays of one file as the inputs take them, or why it has none.

    Numbers of another width are taken where nothing is lost but digits: float64 for float32, int32 for int64.
    """
    given = _arrays(path, inputs)
    names = [tensor.name for tensor in inputs]
    expected = " ".join(str(tensor) for tensor in inputs)
    if missing := [name for name in names if name not in given]:
        raise BadRow(f"has no array {missing[0]!r}; it has {listed(given)}, expected {expected}")
    if unknown := [name for name in given if name not in names]:
        raise BadRow(f"has an array {unknown[0]!r}, and the model no such input; expected {expected}")
    feeds = {tensor.name: _as(tensor, given[tensor.name]) for tensor in inputs}
    try:
        axis_sizes(tuple(inputs), feeds)
    except InputError as error:
        raise BadRow(f"{error}; expected {expected}") from error
    return feeds


def calls(path: Path, inputs: Sequence[TensorSpec]) -> Rows:
    """The files of a folder, or one file, in the order of their names; each is read, and one that fits not is bad."""
    if not path.exists():
        raise InputError(
            f"{shown(path)} does not exist; expected a folder of {' or '.join(ENDINGS)}, one call a file"
        )
    files = [path]
    if path.is_dir():
        files = sorted(item for item in path.iterdir() if not item.name.startswith("."))
    if len(files) > MAX_CALLS:
        raise InputError(f"{shown(path)} holds more than {MAX_CALLS} calls; draw some from it")
    for at, file in enumerate(files, start=1):
        try:
            feeds_of(file, inputs)
            fields: Fields | BadRow = {"arrays": file}
        except BadRow as error:
            fields = error
        yield Row(where=shown(file), name=shown(file.name), line=at, fields=fields)


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as .npz, whatever their names are."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _arrays(path: Path, inputs: Sequence[TensorSpec]) -> Mapping[str, Array]:
    if path.suffix.lower() not in ENDINGS:
        raise BadRow(f"is no file of arrays; expected one of: {', '.join(ENDINGS)}")
    try:
        refuse_beyond(path, path.stat().st_size)
        # Opened here, since numpy leaves a file open that it cannot read.
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.lib.npyio.NpzFile):
                with loaded:
                    return {name: loaded[name] for name in loaded.files}
    except OSError as error:
        raise BadRow(f"cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        # Of objects, and of what is no file of its own, numpy says how to load it unsafely.
        why = "numpy did not write it, or objects are in it" if "pickle" in str(error) else error
        raise BadRow(f"cannot be read as arrays: {why}") from error
    if len(inputs) != 1:
        raise BadRow(f"is one array, and the model takes {len(inputs)}; expected .npz with an array for each")
    return {inputs[0].name: loaded}


def _as(tensor: TensorSpec, array: Array) -> Array:
    """The array in the input's type, if it holds numbers of that kind."""
    wanted = np.dtype(tensor.dtype)
    if array.dtype == wanted:
        return array
    kinds = {array.dtype.kind, wanted.kind}
    if kinds == {"f"}:
        return array.astype(wanted)
    if kinds <= {"i", "u"}:
        cast = array.astype(wanted)
        if np.array_equal(cast, array):
            return cast
        raise BadRow(f"{tensor.name}: {array.dtype} numbers that {wanted} does not hold")
    raise BadRow(f"{tensor.name}: dtype {array.dtype}, expected {wanted}")


def loaded(inputs: Sequence[TensorSpec], data: Dataset) -> Kept[Feeds]:
    """The calls of a data set."""

    def read(example: Example) -> Feeds:
        if example.arrays is None:
            raise InputError(f"{data.path}: row {example.line} has no arrays")
        return read_feeds(example.arrays, inputs)

    return Kept(data, read, lambda feeds: sum(array.nbytes for array in feeds.values()))
