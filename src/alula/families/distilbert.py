"""DistilBERT: BERT without token types and pooler, under names of its own."""

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
    path="transformer.layer",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    attention="attention",
    output="attention.out_lin",
    attention_norm="sa_layer_norm",
    expand="ffn.lin1",
    contract="ffn.lin2",
    norm="output_layer_norm",
    counted="n_layers",
)


def encode(b: Builder, inputs: Inputs, s: Settings) -> ir.Value:
    """Token ids to token states; sinusoidal positions are stored like learned ones."""
    length = length_of(b, inputs.ids)
    positions = by_place(b, inputs, position_table(b, s), length, "embeddings.position_embeddings")
    x = embed(b, inputs, positions, s)
    return layers(b, x, visible(b, inputs, length), LAYERS, s)


def summarize(b: Builder, states: ir.Value, s: Settings) -> ir.Value:
    """The first layer of the classification head."""
    first = first_token(b, states, "pre_classifier")
    return b.op("Relu", linear(b, first, "pre_classifier", s.square, head=True), path="pre_classifier")


FAMILY = Family(prefix="distilbert.", encode=encode, summarize=summarize)
