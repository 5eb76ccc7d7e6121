"""A part of a model as an ONNX graph: encoder, head, outputs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.packing import BESIDE, CELL_TEXTS, CELLS, TOKEN_CELLS
from alula.families import (
    bert,
    distilbert,
    electra,
    image_graph,
    images,
    mpnet,
    pooling,
    roberta,
    writing,
)
from alula.families.builder import OPSETS, Builder, graph_input
from alula.families.checkpoint import Checkpoint
from alula.families.family import Family
from alula.families.layers import Inputs, length_of, linear
from alula.families.packing import Packing
from alula.families.sentence import read_embedding
from alula.families.settings import read_settings
from alula.families.tasks import head_layer
from alula.families.weights import read_weights

FAMILIES: Mapping[str, Family] = {
    "bert": bert.FAMILY,
    "distilbert": distilbert.FAMILY,
    "electra": electra.FAMILY,
    "mpnet": mpnet.FAMILY,
    "roberta": roberta.FAMILY,
}


def assemble(
    checkpoint: Checkpoint, spec: ModelSpec, part_name: str, opset: int, *, packed: bool = False
) -> ir.Model:
    """Write one part of a family that has a module here; `packed`, an encoder takes several texts in a row."""
    if opset not in OPSETS:
        raise InputError(f"opset {opset} is not one that graphs are written in: {OPSETS}")
    if spec.writes:
        return writing.write_part(checkpoint, spec, part_name, opset)
    part = spec.part(part_name)
    if spec.family in images.FAMILIES:
        return image_graph.write_part(checkpoint, spec, part, opset)
    family = FAMILIES[spec.family]
    b = Builder(read_weights(checkpoint.root), family.prefix)
    taken = (*part.inputs, *(BESIDE if packed else ()))
    values = {tensor.name: graph_input(tensor) for tensor in taken}
    ids, mask = values["input_ids"], values["attention_mask"]
    packing = _packing(b, values) if packed else None
    inputs = Inputs(ids=ids, mask=mask, types=values.get("token_type_ids"), packing=packing)
    settings = read_settings(spec.family, checkpoint.config)
    states = family.encode(b, inputs, settings)
    if packing:
        states = packing.give_back(b, states, settings.hidden)
    layer = head_layer(spec.family, spec.task)
    outputs: tuple[ir.Value, ...]
    if spec.task == "embeddings":
        embedding = _embedding(b, checkpoint, spec, states, inputs.mask)
        outputs = (embedding, states)[: len(part.outputs)]
    elif spec.task == "question-answering":
        outputs = _ends(b, states, layer, settings.hidden)
    elif spec.task == "token-classification":
        outputs = (_logits(b, states, layer, len(spec.labels), settings.hidden),)
    else:
        summary = family.summarize(b, states, settings)
        outputs = (_logits(b, summary, layer, len(spec.labels), settings.hidden),)
    named = [b.rename(value, tensor) for value, tensor in zip(outputs, part.outputs, strict=True)]
    return b.model(list(values.values()), named, part_name, opset)


def _packing(b: Builder, values: Mapping[str, ir.Value]) -> Packing:
    return Packing(
        cells=values[CELLS],
        texts=values[CELL_TEXTS],
        token_cells=values[TOKEN_CELLS],
        length=length_of(b, values["input_ids"]),
    )


def _embedding(
    b: Builder, checkpoint: Checkpoint, spec: ModelSpec, states: ir.Value, mask: ir.Value
) -> ir.Value:
    x = pooling.pool(b, states, mask, spec.pooling)
    for module in read_embedding(checkpoint, spec.pooling).dense:
        x = pooling.dense(b, x, module)
    return pooling.normalize(b, x) if spec.normalize else x


def _ends(b: Builder, states: ir.Value, layer: str, hidden: int) -> tuple[ir.Value, ...]:
    """Start and end logits."""
    b.require_rows(f"{layer}.weight", 2, "start and end", head=True)
    both = linear(b, states, layer, (2, hidden), head=True)
    ends = b.ops("Split", both, path=layer, outputs=2, axis=-1, num_outputs=2)
    return tuple(b.op("Squeeze", end, b.ints(-1), path=layer) for end in ends)


def _logits(b: Builder, states: ir.Value, layer: str, labels: int, hidden: int) -> ir.Value:
    b.require_rows(f"{layer}.weight", labels, "the number of labels", head=True)
    return linear(b, states, layer, (labels, hidden), head=True)
