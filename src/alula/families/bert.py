"""BERT: learned positions from 0, token types, post-norm layers, a tanh pooler under the classifier."""

from __future__ import annotations

import onnx_ir as ir

from alula.families.builder import Builder
from alula.families.family import Family
from alula.families.layers import (
    Inputs,
    LayerNames,
    by_place,
    embed,
    first_token,
    layers,
    length_of,
    linear,
    position_table,
    visible,
)
from alula.families.settings import Settings

LAYERS = LayerNames(
    path="encoder.layer",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    attention="attention.self",
    output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    expand="intermediate.dense",
    contract="output.dense",
    norm="output.LayerNorm",
)


def encode(b: Builder, inputs: Inputs, s: Settings) -> ir.Value:
    """Token ids to token states."""
    length = length_of(b, inputs.ids)
    positions = by_place(b, inputs, position_table(b, s), length, "embeddings.position_embeddings")
    x = embed(b, inputs, positions, s)
    return layers(b, x, visible(b, inputs, length), LAYERS, s)


def summarize(b: Builder, states: ir.Value, s: Settings) -> ir.Value:
    """The pooler."""
    first = first_token(b, states, "pooler")
    return b.op("Tanh", linear(b, first, "pooler.dense", s.square), path="pooler")


FAMILY = Family(prefix="bert.", encode=encode, summarize=summarize)
