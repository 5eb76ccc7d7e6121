"""A part of a model as an ONNX graph: encoder, head, outputs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.families import bert, distilbert, electra, mpnet, pooling, roberta
from alula.families.builder import OPSETS, Builder, graph_input
from alula.families.checkpoint import Checkpoint
from alula.families.family import Family
from alula.families.layers import Inputs, linear
from alula.families.sentence import read_embedding
from alula.families.settings import read_settings
from alula.families.weights import read_weights

FAMILIES: Mapping[str, Family] = {
    "bert": bert.FAMILY,
    "distilbert": distilbert.FAMILY,
    "electra": electra.FAMILY,
    "mpnet": mpnet.FAMILY,
    "roberta": roberta.FAMILY,
}


def assemble(checkpoint: Checkpoint, spec: ModelSpec, part_name: str, opset: int) -> ir.Model:
    """Write one part of a family that has a module here."""
    if opset not in OPSETS:
        raise InputError(f"opset {opset} is not one that graphs are written in: {OPSETS}")
    part = spec.part(part_name)
    family = FAMILIES[spec.family]
    b = Builder(read_weights(checkpoint.root), family.prefix)
    values = {tensor.name: graph_input(tensor) for tensor in part.inputs}
    inputs = Inputs(
        ids=values["input_ids"], mask=values["attention_mask"], types=values.get("token_type_ids")
    )
    states = family.encode(b, inputs, read_settings(spec.family, checkpoint.config))
    if spec.task == "embeddings":
        outputs: tuple[ir.Value, ...] = (_embedding(b, checkpoint, spec, states, inputs.mask),)
    elif spec.task == "question-answering":
        outputs = _ends(b, states)
    else:
        outputs = (_logits(b, family, spec, states),)
    named = [b.rename(value, tensor) for value, tensor in zip(outputs, part.outputs, strict=True)]
    return b.model(list(values.values()), named, part_name, opset)


def _embedding(
    b: Builder, checkpoint: Checkpoint, spec: ModelSpec, states: ir.Value, mask: ir.Value
) -> ir.Value:
    x = pooling.pool(b, states, mask, spec.pooling)
    for module in read_embedding(checkpoint).dense:
        x = pooling.dense(b, x, module)
    return pooling.normalize(b, x) if spec.normalize else x


def _ends(b: Builder, states: ir.Value) -> tuple[ir.Value, ...]:
    """Start and end logits."""
    _check_rows(b, "qa_outputs", 2)
    both = linear(b, states, "qa_outputs", head=True)
    ends = b.ops("Split", both, path="qa_outputs", outputs=2, axis=-1, num_outputs=2)
    return tuple(b.op("Squeeze", end, b.ints(-1), path="qa_outputs") for end in ends)


def _logits(b: Builder, family: Family, spec: ModelSpec, states: ir.Value) -> ir.Value:
    of_tokens = spec.task == "token-classification"
    last = "classifier" if of_tokens else family.classifier
    _check_rows(b, last, len(spec.labels))
    return linear(b, states if of_tokens else family.summarize(b, states), last, head=True)


def _check_rows(b: Builder, name: str, expected: int) -> None:
    found = b.shape(f"{name}.weight", head=True)[0]
    if found != expected:
        raise InputError(
            f"{name}.weight has {found} rows, config.json and the task speak of {expected} labels"
        )
