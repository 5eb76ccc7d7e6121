"""Any ONNX file of standard operators as a model: arrays in, arrays out, under the names that the file has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, RemoveInitializersFromInputsPass, ShapeInferencePass

from alula.core.errors import InputError
from alula.core.model import ModelSpec, Part
from alula.core.tensor import Dim, TensorSpec
from alula.core.words import TENSORS
from alula.families.checkpoint import Checkpoint
from alula.families.stated import DTYPES, agree

OLDEST, NEWEST = 7, 24
"""Opsets of files that are taken: below 7 broadcasting was another one, above 24 nothing here reads them yet."""

OPEN = "?"
"""An axis of the file without size and name."""

# What exporters write where nobody named an axis, and what means rows.
_NO_NAME = re.compile(r"\??|none|unk_?_?\d*|p2o\..*|dynamic.*|.*_dynamic_axes_\d+|.*dim_?\d+|axis_?\d+", re.I)
_ROWS = re.compile(r".*batch.*|n|b|bs", re.I)
_PROBABILITIES = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})
_MOVES = frozenset(
    {"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Expand", "Cast"}
)

_LAYERS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Attention"})
_QUANTIZED = frozenset(
    {
        "QuantizeLinear",
        "DynamicQuantizeLinear",
        "ConvInteger",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
    }
)


def prepare(model: ir.Model) -> None:
    """Functions written out and constants no inputs: what a file says beyond its operators is gone."""
    if model.functions:
        InlinePass()(model)
    RemoveInitializersFromInputsPass()(model)


def refuse_foreign(model: ir.Model, source: str) -> None:
    """Refuse operators that are not ONNX's own, by name, and opsets that are not read."""
    foreign: dict[str, dict[str, None]] = {}
    for node in model.graph.all_nodes():
        if node.domain not in {"", "ai.onnx"}:
            foreign.setdefault(node.domain, {})[node.op_type] = None
    if foreign:
        named = "; ".join(f"{', '.join(kinds)} of {domain}" for domain, kinds in foreign.items())
        raise InputError(
            f"{source} uses operators that are not ONNX's own: {named}; export it without them, "
            "such as before it is optimised or quantised for one runtime"
        )
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx"))
    if opset is None:
        raise InputError(f"{source}: names no opset of ONNX; it is empty, or no ONNX file")
    if not OLDEST <= opset <= NEWEST:
        raise InputError(f"{source} has opset {opset}; expected {OLDEST} to {NEWEST}")


def refuse_dangling(model: ir.Model, source: str) -> None:
    """Refuse a file in which a node reads what nothing gives."""
    for node in model.graph.all_nodes():
        for value in node.inputs:
            if value is None or value.producer() or value.is_graph_input() or value.is_initializer():
                continue
            raise InputError(
                f"{source}: a {node.op_type} {f'({node.name}) ' if node.name else ''}reads {value.name!r}, which "
                "nothing in the file gives; export it again"
            )


def describe_tensors(checkpoint: Checkpoint, model: ir.Model, stated: Sequence[TensorSpec]) -> ModelSpec:
    """What a file is whose outputs are compared as they are; the model is changed on the way."""
    source = str(checkpoint.root)
    refuse_dangling(model, source)
    prepare(model)
    refuse_foreign(model, source)
    inputs, names = _inputs(model, stated, source)
    theirs = [(value, _dims(value)) for value in model.graph.outputs]
    _infer(model, inputs)
    return ModelSpec(
        name=checkpoint.name,
        digest=checkpoint.digest,
        revision=checkpoint.revision,
        architecture="ONNX",
        family="onnx",
        task=TENSORS,
        parts=(
            Part(
                name="encoder",
                inputs=tuple(map(_with_range, inputs, model.graph.inputs)),
                outputs=tuple(_output(value, shape, names, inputs, source) for value, shape in theirs),
            ),
        ),
        max_length=0,
        vocab_size=0,
        pad_id=0,
        comes_in=_comes_in(model),
    )


def only_as_it_is(model: ir.Model) -> str:
    """Why a file is built in no other precision than its own; empty if it can be. The model is changed on the way."""
    prepare(model)
    ShapeInferencePass(check_type=False, strict_mode=False)(model)
    if (own := _comes_in(model)) != "fp32":
        return f"the file computes in {own} itself, and is built as it is"
    if any(True for _ in model.graph.subgraphs()):
        return "the file has branches or loops, which no other precision is written into"
    kinds = {node.op_type for node in model.graph}
    if not kinds & _LAYERS:
        return f"the file has none of {', '.join(sorted(_LAYERS))}, which are what other precisions compute"
    wide = next((value.name for value in _values(model) if value.dtype == ir.DataType.DOUBLE), None)
    return f"{wide!r} in the file is float64, which no other precision is written beside" if wide else ""


def _comes_in(model: ir.Model) -> str:
    """The lowest precision that the file itself computes in."""
    if any(node.op_type in _QUANTIZED for node in model.graph.all_nodes()):
        return "int8"
    dtypes = {value.dtype for value in _values(model)}
    if ir.DataType.BFLOAT16 in dtypes:
        return "bf16"
    return "fp16" if ir.DataType.FLOAT16 in dtypes else "fp32"


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.initializers.values()
        for node in graph:
            yield from node.outputs


def _inputs(
    model: ir.Model, stated: Sequence[TensorSpec], source: str
) -> tuple[tuple[TensorSpec, ...], dict[str, Dim]]:
    """The inputs, as they are stated or as the file has them, every axis with a name; and our names by the file's."""
    file = [(str(value.name), _dtype(value, "input", source), _dims(value)) for value in model.graph.inputs]
    if not file:
        raise InputError(f"{source} has no inputs: it gives the same each time")
    agree(stated, file, source)
    by_name = {spec.name: spec for spec in stated}
    shapes: dict[str, tuple[Dim, ...]] = {}
    for name, dtype, shape in file:
        if shape is None and name not in by_name:
            raise InputError(
                f"{source}: input {name!r} has no shape; state it: --inputs '{name}={dtype}[batch,3,height,width]'"
            )
        # What the file leaves open altogether is as it is stated.
        shapes[name] = tuple(OPEN for _ in by_name[name].shape) if shape is None else shape
    names = _AxisNames(shapes, {name: spec.shape for name, spec in by_name.items()})
    inputs = tuple(
        TensorSpec(
            name=name,
            dtype=dtype,
            shape=names.shapes[name],
            range=by_name[name].range if name in by_name else None,
        )
        for name, dtype, _ in file
    )
    return inputs, names.by_theirs


class _AxisNames:
    """What the axes of a file are called here: as they are stated, else as the file calls them, else by their place."""

    def __init__(self, file: Mapping[str, tuple[Dim, ...]], stated: Mapping[str, tuple[Dim, ...]]) -> None:
        self.by_theirs: dict[str, Dim] = {}
        self.shapes: dict[str, tuple[Dim, ...]] = {}
        for name, shape in stated.items():
            for ours, theirs in zip(shape, file[name], strict=True):
                if isinstance(theirs, str) and theirs != OPEN:
                    self.by_theirs.setdefault(theirs, ours)
        # What is stated by a name of the file's is that axis: so two are said to be one.
        self._said = {dim for shape in stated.values() for dim in shape if isinstance(dim, str)}
        self._taken = set(self._said)
        self._rows = first_is_rows(list(file.values()), list(stated.values()))
        if self._rows:
            self._taken.add("batch")
            self.by_theirs.update(
                (str(shape[0]), "batch") for shape in file.values() if shape and shape[0] != OPEN
            )
        for name, shape in file.items():
            self.shapes[name] = stated.get(name) or tuple(
                dim if isinstance(dim, int) else self._named(name, at, dim) for at, dim in enumerate(shape)
            )

    def _named(self, name: str, at: int, theirs: str) -> Dim:
        if at == 0 and self._rows:
            return "batch"
        if theirs == OPEN:
            return self._free(f"{plain(name) or 'input'}_{at}")
        if theirs not in self.by_theirs:
            own = plain(theirs) or f"{plain(name) or 'input'}_{at}"
            self.by_theirs[theirs] = own if own in self._said else self._free(own)
        return self.by_theirs[theirs]

    def _free(self, name: str) -> str:
        found, number = name, 2
        while found in self._taken:
            found, number = f"{name}_{number}", number + 1
        self._taken.add(found)
        return found


def first_is_rows(file: Sequence[tuple[Dim, ...]], stated: Sequence[tuple[Dim, ...]]) -> bool:
    """Whether the first axis of all inputs is open and one, and nothing says that it is something else than rows.

    Single numbers beside them have none.
    """
    file, stated = ([shape for shape in each if shape] for each in (file, stated))
    if not file or any(isinstance(shape[0], int) for shape in (*file, *stated)):
        return False
    firsts = {str(shape[0]) for shape in file}
    others = {str(dim) for shape in (*file, *stated) for dim in shape[1:]} - firsts
    if any(shape[0] != "batch" for shape in stated) or any(_ROWS.fullmatch(other) for other in others):
        return False
    said = {first for first in firsts if not _NO_NAME.fullmatch(first)}
    # Compilers number what they find ("s0"): equal numbers are one axis, and several are several.
    numbered = {first for first in said if re.fullmatch(r"s\d+", first)}
    return len(numbered) <= 1 and all(_ROWS.fullmatch(first) for first in said - numbered)


def plain(name: str) -> str:
    """A name in letters, digits and _, that does not begin with a digit; empty where nothing is left of it."""
    kept = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return f"axis_{kept}" if kept[:1].isdigit() else kept


def _infer(model: ir.Model, inputs: Sequence[TensorSpec]) -> None:
    """Shapes all through the graph in our axes; those that the file states are in its own, and now and then wrong."""
    for node in model.graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    for value, spec in zip(model.graph.inputs, inputs, strict=True):
        value.shape = ir.Shape(spec.shape)
    ShapeInferencePass(check_type=False, strict_mode=False)(model)


def _output(
    value: ir.Value,
    theirs: tuple[Dim, ...] | None,
    names: Mapping[str, Dim],
    inputs: Sequence[TensorSpec],
    source: str,
) -> TensorSpec:
    """An output with what is known of its axes: inferred, else as the file has them, else named by their place."""
    name, dtype, inferred = str(value.name), _dtype(value, "output", source), _dims(value)
    if inferred is None and theirs is None:
        raise InputError(f"{source}: output {name!r} has no shape, and none can be inferred")
    if inferred is None or (theirs is not None and len(theirs) != len(inferred)):
        inferred = tuple(OPEN for _ in theirs or ())
    theirs = inferred if theirs is None else theirs
    axes = {dim for spec in inputs for dim in spec.shape if isinstance(dim, str)}
    shape = []
    for at, (found, said) in enumerate(zip(inferred, theirs, strict=True)):
        if isinstance(found, int) or found in axes:
            shape.append(found)
        elif isinstance(said, int) or said in names:
            shape.append(names.get(said, said) if isinstance(said, str) else said)
        else:
            own = plain(said)
            known = own and not _NO_NAME.fullmatch(said) and own not in axes and plain(own) == said
            shape.append(said if known else f"{plain(name) or 'output'}_{at}")
    return TensorSpec(name=name, dtype=dtype, shape=tuple(shape), range=reached(value, dtype))


def _dtype(value: ir.Value, side: str, source: str) -> str:
    """The element type of an input or output, if it is one that engines take."""
    if not isinstance(value.type, ir.TensorType):
        kind = "of no type" if value.type is None else type(value.type).__name__.removesuffix("Type").lower()
        raise InputError(f"{source}: {side} {value.name!r} is {kind}, expected a tensor")
    word = value.type.dtype.name.lower()
    dtype = {"float": "float32", "double": "float64"}.get(word, word)
    if dtype not in DTYPES:
        raise InputError(f"{source}: {side} {value.name!r} is {dtype}, expected one of: {', '.join(DTYPES)}")
    return dtype


def _dims(value: ir.Value) -> tuple[Dim, ...] | None:
    """The file's own shape: sizes, names, and `OPEN`; None where it has no rank."""
    if value.shape is None:
        return None
    # Some exporters write -1 or 0 for a size that is open.
    return tuple(
        dim if isinstance(dim, int) and dim > 0 else OPEN if isinstance(dim, int) else dim.value or OPEN
        for dim in value.shape
    )


def _with_range(spec: TensorSpec, value: ir.Value) -> TensorSpec:
    """The input with the range of its values: as it is stated, else the rows of the tables that it picks from."""
    if spec.range is not None or not spec.dtype.startswith(("int", "uint")):
        return spec
    rows = [size for size in _tables(value) if size is not None]
    return replace(spec, range=(0.0, float(min(rows) - 1))) if rows else spec


def _tables(value: ir.Value) -> Iterator[int | None]:
    """How many rows each Gather has that takes its rows from this value."""
    for node, index in value.uses():
        if node.op_type == "Gather" and index == 1:
            table, axis = node.inputs[0], node.attributes.get_int("axis", 0)
            size = table.shape[axis] if table is not None and table.shape is not None else None
            yield size if isinstance(size, int) else None
        elif node.op_type in _MOVES and index == 0:
            yield from _tables(node.outputs[0])


def reached(value: ir.Value, dtype: str) -> tuple[float, float] | None:
    """0 to 1 for probabilities: they are rounded near 1, however small all of them are in a sample."""
    while (node := value.producer()) is not None and node.op_type in _MOVES:
        source = node.inputs[0]
        if source is None:
            return None
        value = source
    found = node is not None and node.op_type in _PROBABILITIES
    return (0.0, 1.0) if found and dtype.startswith("float") else None
