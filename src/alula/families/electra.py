"""ELECTRA: BERT with embeddings of a size of their own, and a GELU in its classification head."""

from __future__ import annotations

import onnx_ir as ir

from alula.families.bert import LAYERS
from alula.families.builder import Builder
from alula.families.family import Family
from alula.families.layers import (
    WORDS,
    Inputs,
    activation,
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


def encode(b: Builder, inputs: Inputs, s: Settings) -> ir.Value:
    """Token ids to token states."""
    length = length_of(b, inputs.ids)
    size = s.embedding or next(iter(b.shape(WORDS)[1:]), 0)
    positions = by_place(b, inputs, position_table(b, s, size), length, "embeddings.position_embeddings")
    x = embed(b, inputs, positions, s, size)
    if size != s.hidden:
        x = linear(b, x, "embeddings_project", (s.hidden, size))
    return layers(b, x, visible(b, inputs, length), LAYERS, s)


def summarize(b: Builder, states: ir.Value, s: Settings) -> ir.Value:
    """The first layer of the classification head; its GELU does not depend on hidden_act."""
    first = first_token(b, states, "classifier")
    return activation(b, linear(b, first, "classifier.dense", s.square, head=True), "gelu", "classifier")


FAMILY = Family(prefix="electra.", encode=encode, summarize=summarize)
