"""A graph of a newer opset in the words of an older one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError, PreconditionError
from onnx_ir.passes.common import ShapeInferencePass

from alula.core.words import check_opset
from alula.graphs.passes.attention import DecomposeAttention
from alula.graphs.passes.edit import Editor, ints_of
from alula.graphs.passes.gelu import DecomposeGelu
from alula.graphs.passes.rms import DecomposeRms
from alula.graphs.passes.rotary import DecomposeRotary

_IR_VERSION: Mapping[int, int] = {17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12}

_REDUCTIONS = frozenset(
    f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
)

# Their versions between 17 and 24 differ in the types they take, or in an attribute whose default is the old
# behaviour. The types are checked afterwards.
_SAME_MEANING = frozenset(
    {
        *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Sin", "Sinh", "Tan"),
        *("Cast", "CastLike", "Constant", "ConstantOfShape", "EyeLike", "Identity", "Shape", "Size"),
        *("Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "RoiAlign"),
        *("DequantizeLinear", "QuantizeLinear", "Round", "Equal", "IsInf", "IsNaN", "TopK", "Dropout"),
        *("Elu", "HardSigmoid", "HardSwish", "Selu", "Softplus", "Softsign", "ThresholdedRelu"),
        *("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"),
        *("GRU", "If", "InstanceNormalization", "Loop", "LpNormalization", "LSTM", "RNN", "Scan"),
    }
)


class LowerOpset(InPlacePass):
    """Brings a graph down to an opset from 17 to 24, operator by operator."""

    def __init__(self, opset: int) -> None:
        super().__init__()
        check_opset(opset)
        self.opset = opset

    def requires(self, model: ir.Model) -> None:
        """The graph is not older than the target, and has no operators of other domains."""
        given = model.opset_imports.get("", 0)
        if given < self.opset:
            raise PreconditionError(f"the graph has opset {given}, which cannot be raised to {self.opset}")
        if foreign := [node for node in model.graph.all_nodes() if node.domain not in {"", "ai.onnx"}]:
            raise PreconditionError(
                f"{foreign[0].name}: {foreign[0].domain}::{foreign[0].op_type} is not ONNX's own"
            )

    def call(self, model: ir.Model) -> PassResult:
        """Decompose what the target lacks, then rewrite what it words differently."""
        given = model.opset_imports[""]
        if given == self.opset:
            return PassResult(model, modified=False)
        if self.opset < 23:
            for decompose in (DecomposeAttention(), DecomposeRms(), DecomposeRotary()):
                decompose(model)
        if self.opset < 20:
            DecomposeGelu()(model)
        if _changed(model, "Split", given, self.opset):
            ShapeInferencePass()(model)
        for node in list(model.graph.all_nodes()):
            _lower(node, given, self.opset)
        model.graph.opset_imports[""] = self.opset
        model.ir_version = min(model.ir_version, _IR_VERSION[self.opset])
        return PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Every operator and every known type is one of the target's."""
        for node in model.graph.all_nodes():
            schema = _schema(node.op_type, self.opset)
            if schema is None:
                raise PostconditionError(f"{node.name}: opset {self.opset} has no {node.op_type}")
            if unknown := set(node.attributes) - set(schema.attributes):
                raise PostconditionError(f"{node.name}: {node.op_type} has no {sorted(unknown)} there")
            _check_types(node, schema, self.opset)


def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def _changed(model: ir.Model, op_type: str, given: int, opset: int) -> bool:
    new, old = _schema(op_type, given), _schema(op_type, opset)
    differs = new is not None and (old is None or new.since_version != old.since_version)
    return differs and any(node.op_type == op_type for node in model.graph.all_nodes())


def _lower(node: ir.Node, given: int, opset: int) -> None:
    new, old = _schema(node.op_type, given), _schema(node.op_type, opset)
    if new is None:
        raise PreconditionError(f"{node.name}: opset {given} has no {node.op_type}")
    if old is not None and old.since_version == new.since_version:
        return
    rule = _RULES.get(node.op_type, _axes_to_attribute if node.op_type in _REDUCTIONS else None)
    if rule is not None:
        rule(node, opset)
    elif old is None or node.op_type not in _SAME_MEANING:
        raise PreconditionError(f"{node.name}: {node.op_type} of opset {given} has no form in opset {opset}")
    else:
        _drop_defaults(node, new, old)


def _drop_defaults(node: ir.Node, new: onnx.defs.OpSchema, old: onnx.defs.OpSchema) -> None:
    """Remove attributes that the old operator lacks, as long as they say nothing."""
    for name in set(node.attributes) - set(old.attributes):
        default = onnx.helper.get_attribute_value(new.attributes[name].default_value)
        default = default.decode() if isinstance(default, bytes) else default
        if node.attributes[name].value != default:
            raise PreconditionError(f"{node.name}: {name}={node.attributes[name].value!r} has no older form")
        node.attributes.pop(name)


def _axes_to_attribute(node: ir.Node, opset: int) -> None:
    """Reductions read their axes from an attribute below opset 18."""
    if opset >= 18:
        return
    given = node.inputs[1] if len(node.inputs) > 1 else None
    axes = ints_of(given)
    if given is not None and axes is None:
        raise PreconditionError(
            f"{node.name}: {node.op_type} with axes that are computed has no form in opset {opset}"
        )
    no_axes_no_reduction = node.attributes.get_int("noop_with_empty_axes", 0)
    if not axes and no_axes_no_reduction:
        raise PreconditionError(
            f"{node.name}: {node.op_type} that reduces nothing has no form in opset {opset}"
        )
    node.attributes.pop("noop_with_empty_axes", None)
    node.resize_inputs(1)
    if axes:
        node.attributes["axes"] = ir.AttrInt64s("axes", axes)


def _sizes_of_split(node: ir.Node, opset: int) -> None:
    """Split takes the number of its parts from its outputs below opset 18, and parts must then be equal."""
    if opset >= 18:
        return
    parts = node.attributes.get_int("num_outputs", len(node.outputs))
    node.attributes.pop("num_outputs", None)
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return
    source, axis = node.inputs[0], node.attributes.get_int("axis", 0)
    size = source.shape[axis] if source is not None and source.shape is not None else None
    if not isinstance(size, int):
        raise PreconditionError(f"{node.name}: Split of an axis of unknown size has no form in opset {opset}")
    if size % parts:
        each = -(-size // parts)
        sizes = Editor(node).ints(*[each] * (parts - 1), size - each * (parts - 1))
        node.resize_inputs(2)
        node.replace_input_with(1, sizes)


def _plain_swish(node: ir.Node, opset: int) -> None:
    del opset
    edit, x, alpha = Editor(node), node.inputs[0], node.attributes.get_float("alpha", 1.0)
    assert x is not None
    inner = x if alpha == 1.0 else edit.op("Mul", x, edit.number(alpha, x.dtype or ir.DataType.FLOAT))
    edit.replace(edit.op("Mul", x, edit.op("Sigmoid", inner)))


def _four_axes_of_pad(node: ir.Node, opset: int) -> None:
    """Pad takes no axes below opset 18, and does not wrap below 19."""
    if len(node.inputs) > 3 and opset < 18:
        raise PreconditionError(f"{node.name}: Pad with axes has no form in opset {opset}")
    if node.attributes.get_string("mode", "constant") == "wrap" and opset < 19:
        raise PreconditionError(f"{node.name}: Pad that wraps has no form in opset {opset}")


def _whole_windows(node: ir.Node, opset: int) -> None:
    """AveragePool has no dilations below opset 19; of ones they say nothing."""
    dilations = node.attributes.pop("dilations", None) if opset < 19 else None
    if dilations is not None and set(dilations.as_ints()) != {1}:
        raise PreconditionError(f"{node.name}: AveragePool with dilations has no form in opset {opset}")


_RESIZE_DEFAULTS = {"antialias": 0, "keep_aspect_ratio_policy": "stretch"}


def _plain_resize(node: ir.Node, opset: int) -> None:
    """Resize knows all axes, any aspect ratio and no filter below opset 18, and one kind of half pixels below 19."""
    if (
        opset < 19
        and node.attributes.get_string("coordinate_transformation_mode", "") == "half_pixel_symmetric"
    ):
        raise PreconditionError(f"{node.name}: Resize by half_pixel_symmetric has no form in opset {opset}")
    if opset >= 18:
        return
    if "axes" in node.attributes:
        raise PreconditionError(f"{node.name}: Resize with axes has no form in opset {opset}")
    for name, default in _RESIZE_DEFAULTS.items():
        given = node.attributes.pop(name, None)
        if given is not None and given.value != default:
            raise PreconditionError(
                f"{node.name}: Resize with {name}={given.value!r} has no form in opset {opset}"
            )


def _plain_scatter(node: ir.Node, opset: int) -> None:
    """Scattering takes no minimum or maximum below opset 18."""
    reduction = node.attributes.get_string("reduction", "none")
    if reduction in {"min", "max"} and opset < 18:
        raise PreconditionError(
            f"{node.name}: {node.op_type} with reduction {reduction} has no form in opset {opset}"
        )


def _attention_24(node: ir.Node, opset: int) -> None:
    """Attention of opset 24 is that of 23 with one input more."""
    if len(node.inputs) > 6 and node.inputs[6] is not None:
        raise PreconditionError(f"{node.name}: Attention with nonpad_kv_seqlen has no form in opset {opset}")


_RULES: Mapping[str, Callable[[ir.Node, int], None]] = {
    "Attention": _attention_24,
    "AveragePool": _whole_windows,
    "Resize": _plain_resize,
    "Split": _sizes_of_split,
    "Swish": _plain_swish,
    "Pad": _four_axes_of_pad,
    "ScatterElements": _plain_scatter,
    "ScatterND": _plain_scatter,
}

_TYPE_NAMES = {ir.DataType.FLOAT: "float"}


def _check_types(node: ir.Node, schema: onnx.defs.OpSchema, opset: int) -> None:
    for index, value in enumerate(node.inputs):
        if value is None or value.dtype is None:
            continue
        # The last formal input may be variadic.
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        name = _TYPE_NAMES.get(value.dtype, value.dtype.name.lower())
        if f"tensor({name})" not in formal.types:
            raise PostconditionError(
                f"{node.name}: {node.op_type} of opset {opset} takes no {name} as {formal.name}"
            )
