"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT's layers, positions counted over tokens that are not padding."""

from __future__ import annotations

import onnx_ir as ir

from alula.families.bert import LAYERS
from alula.families.builder import Builder
from alula.families.family import Family
from alula.families.layers import (
    Inputs,
    embed,
    first_token,
    layers,
    length_of,
    linear,
    padded_positions,
    position_table,
    visible,
)
from alula.families.settings import Settings


def encode(b: Builder, inputs: Inputs, s: Settings) -> ir.Value:
    """Token ids to token states."""
    path = "embeddings.position_embeddings"
    numbers = inputs.in_rows(b, padded_positions(b, inputs.ids, s.pad_id, path))
    positions = b.op("Gather", position_table(b, s), numbers, path=path)
    x = embed(b, inputs, positions, s)
    return layers(b, x, visible(b, inputs, length_of(b, inputs.ids)), LAYERS, s)


def summarize(b: Builder, states: ir.Value, s: Settings) -> ir.Value:
    """The first layer of the classification head, which MPNet shares."""
    first = first_token(b, states, "classifier")
    return b.op("Tanh", linear(b, first, "classifier.dense", s.square, head=True), path="classifier")


FAMILY = Family(prefix="roberta.", encode=encode, summarize=summarize)
