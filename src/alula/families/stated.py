"""`--inputs NAME=DTYPE[DIM,DIM,...]`: what a user says of the inputs of an ONNX file, held to the file."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from alula.core.errors import InputError
from alula.core.tensor import Dim, TensorSpec

DTYPES = (
    *("float32", "float16", "float64", "bool"),
    *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"),
)
"""Element types that inputs and outputs of a file may have, by numpy's names."""

_FORM = re.compile(
    r"(?P<name>.+?)=(?P<dtype>\w+)\[(?P<dims>[^\[\]]*)\](?::(?P<low>[^:]+):(?P<high>[^:]+))?", re.ASCII
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_EXPECTED = (
    "expected NAME=DTYPE[DIM,DIM,...], such as x=float32[batch,3,height,width], "
    "and :LOW:HIGH behind it where values have a range"
)


def parse_inputs(texts: Sequence[str]) -> tuple[TensorSpec, ...]:
    """Every input that is stated; one that is stated twice is refused."""
    stated = tuple(_parse(text) for text in texts)
    names = [spec.name for spec in stated]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"--inputs: {twice[0]!r} is stated twice")
    return stated


def _parse(text: str) -> TensorSpec:
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise InputError(f"--inputs {text!r}: {_EXPECTED}")
    dtype = found["dtype"]
    if dtype not in DTYPES:
        raise InputError(f"--inputs {text!r}: dtype {dtype!r} is not one of: {', '.join(DTYPES)}")
    dims = [part.strip() for part in found["dims"].split(",")] if found["dims"].strip() else []
    shape = tuple(_dim(text, part) for part in dims)
    ends = None if found["low"] is None else _ends(text, dtype, found["low"], found["high"])
    return TensorSpec(name=found["name"], dtype=dtype, shape=shape, range=ends)


def _dim(text: str, part: str) -> Dim:
    if part.isascii() and part.isdigit() and 1 <= len(part.lstrip("0")) <= 10:
        return int(part)
    if not _NAME.fullmatch(part):
        raise InputError(
            f"--inputs {text!r}: axis {part!r} is neither a size of at least 1 nor a name of letters, digits and _"
        )
    return part


def _ends(text: str, dtype: str, low: str, high: str) -> tuple[float, float]:
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = math.nan, math.nan
    whole = dtype.startswith(("int", "uint"))
    if dtype == "bool" or not (
        all(map(math.isfinite, ends))
        and ends[0] <= ends[1]
        and (not whole or all(e.is_integer() for e in ends))
    ):
        kind = "no range, since a bool is drawn from both" if dtype == "bool" else "LOW <= HIGH"
        raise InputError(
            f"--inputs {text!r}: range {low}:{high}, expected {kind}{' in whole numbers' if whole else ''}"
        )
    return ends


def agree(
    stated: Sequence[TensorSpec], file: Sequence[tuple[str, str, Sequence[Dim] | None]], source: str
) -> None:
    """Refuse what contradicts the file: names, element types, ranks and sizes that it fixes.

    The file's inputs are name, dtype and shape, an open axis by its name, "?" if it has none.
    """
    names = [name for name, _, _ in file]
    for spec in stated:
        if spec.name not in names:
            raise InputError(
                f"--inputs {spec}: {source} has no input {spec.name!r}; it has {', '.join(names)}"
            )
        _, dtype, shape = file[names.index(spec.name)]
        if spec.dtype != dtype:
            raise InputError(f"--inputs {spec}: in {source} {spec.name!r} is {dtype}")
        if shape is None:
            continue
        shown = f"{spec.name}={dtype}[{','.join(map(str, shape))}]"
        if len(spec.shape) != len(shape):
            raise InputError(
                f"--inputs {spec}: {len(spec.shape)} axes, and in {source} it has {len(shape)}: {shown}"
            )
        for at, (ours, theirs) in enumerate(zip(spec.shape, shape, strict=True)):
            if isinstance(theirs, int) and ours != theirs:
                raise InputError(f"--inputs {spec}: axis {at} is {theirs} in {source}, and fixed: {shown}")
