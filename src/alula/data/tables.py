"""Arrow and Parquet files, as `datasets` saves them and the hub keeps them, as rows; the only importer of pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from alula.core.errors import InputError, MissingExtraError
from alula.data.fields import SCORED, check_columns, fields_of
from alula.data.rows import MAX_BYTES, BadRow, Fields, Rows, numbered, shown

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise MissingExtraError("reading Arrow and Parquet files", "data") from error

Classes: TypeAlias = Mapping[str, list[str]]
"""The names of numbers, by column."""

BATCH = 256
"""Rows of a Parquet file that are unpacked at once."""

_FILE = b"ARROW1"
BROKEN = (pa.ArrowException, ValueError, OverflowError, MemoryError)
"""What broken files lead to; sizes in them are believed until memory is asked for."""


def rows_of(path: Path, files: tuple[Path, ...], task: str) -> Rows:
    """The rows of some files as if they were one; `path` is what they are called together."""
    at = held = 0
    for file in files:
        for batch, classes in _batches(file, task):
            held += batch.nbytes
            if held > MAX_BYTES:
                raise InputError(
                    f"{shown(path)} unpacks to more than {MAX_BYTES} bytes; draw some rows from it"
                )
            for values in _unpacked(file, batch):
                at += 1
                yield numbered(path, at, _named(values, classes, task), unit="row")


def _batches(file: Path, task: str) -> Iterator[tuple[pa.RecordBatch, Classes]]:
    try:
        with file.open("rb") as source:
            read = _parquet if file.suffix.lower() == ".parquet" else _arrow
            for batch, classes in read(file, source, task):
                batch.validate(full=True)  # offsets and UTF-8; a broken one ends the process where it is used
                yield batch, classes
    except BROKEN as error:
        raise _unreadable(file, error) from error
    except OSError as error:
        if error.strerror:
            raise
        raise _unreadable(file, error) from error  # pyarrow's own, such as for a file cut short


def _arrow(file: Path, source: BinaryIO, task: str) -> Iterator[tuple[pa.RecordBatch, Classes]]:
    """Either of Arrow's forms: `datasets` writes streams."""
    seekable = source.read(len(_FILE)) == _FILE
    source.seek(0)
    opened = pa.ipc.open_file(source) if seekable else pa.ipc.open_stream(source)
    columns, classes = _wanted(file, opened.schema, task)
    batches = (opened.get_batch(at) for at in range(opened.num_record_batches)) if seekable else opened
    for batch in batches:
        yield batch.select(columns), classes


def _parquet(file: Path, source: BinaryIO, task: str) -> Iterator[tuple[pa.RecordBatch, Classes]]:
    with pq.ParquetFile(source) as opened:
        columns, classes = _wanted(file, opened.schema_arrow, task)
        for batch in opened.iter_batches(batch_size=BATCH, columns=columns, use_threads=False):
            yield batch, classes


def _wanted(file: Path, schema: pa.Schema, task: str) -> tuple[list[str], Classes]:
    check_columns(shown(file), tuple(schema.names), task, "expected named columns")
    columns = [name for name in schema.names if name in fields_of(task)]
    return columns, _classes(file, schema)


def _classes(file: Path, schema: pa.Schema) -> Classes:
    """The names of classes that `datasets` keeps with the columns, or beside files that have none with them."""
    described: Any = (schema.metadata or {}).get(b"huggingface")
    beside = file.parent / "dataset_info.json"
    try:
        if described is not None:
            features = json.loads(described)["info"]["features"]
        elif beside.is_file() and file.suffix == ".arrow":
            features = json.loads(beside.read_bytes())["features"]
        else:
            return {}
        found = {name: _names(feature) for name, feature in (features or {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{shown(file)}: its features are not what datasets writes: {error!r}") from error
    return {name: names for name, names in found.items() if names}


def _names(feature: Any) -> list[str]:
    """The names of a column of classes, or of lists of them, which older versions wrote as a list."""
    if isinstance(feature, list) and len(feature) == 1:
        return _names(feature[0])
    if not isinstance(feature, dict):
        return []
    if feature.get("_type") == "ClassLabel":
        return [str(name) for name in feature["names"]]
    return _names(feature.get("feature"))


def _unpacked(file: Path, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch as JSON would have them, bytes aside."""
    try:
        return batch.to_pylist()  # type: ignore[no-any-return] # pyarrow has no types
    except BROKEN as error:
        raise _unreadable(file, error) from error


def _named(values: Fields, classes: Classes, task: str) -> Fields | BadRow:
    """A row with its classes by their names; tasks whose label is a number keep it."""
    try:
        return {
            name: _class(value, classes[name], name, numbers=task in SCORED) if name in classes else value
            for name, value in values.items()
        }
    except BadRow as error:
        return error


def _class(value: object, names: list[str], name: str, *, numbers: bool) -> object:
    """The name of a class; -1 is no class, as in the test sets whose labels are kept back."""
    if isinstance(value, list):
        return [_number_named(item, names, f"{name}[{at}]") for at, item in enumerate(value)]
    if value == -1:
        return None
    return value if numbers else _number_named(value, names, name)


def _number_named(value: object, names: list[str], name: str) -> object:
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if not 0 <= value < len(names):
        raise BadRow(f"field {name!r} is {value}, and its classes are 0 to {len(names) - 1}")
    return names[value]


def _unreadable(file: Path, error: Exception) -> InputError:
    first = str(error).partition("\n")[0] or type(error).__name__
    return InputError(f"{shown(file)} cannot be read as {file.suffix.lower()}: {first}")
