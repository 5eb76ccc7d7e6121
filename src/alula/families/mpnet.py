"""MPNet: RoBERTa's positions, and a learned bias by the distance of two tokens in every attention."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from alula.core.errors import InputError
from alula.families.builder import Builder
from alula.families.distances import bucket
from alula.families.family import Family
from alula.families.layers import (
    Inputs,
    LayerNames,
    additive_mask,
    embed,
    layers,
    length_of,
    padded_positions,
    position_table,
    rows,
)
from alula.families.roberta import summarize
from alula.families.settings import Settings
from alula.families.weights import Floats

# MPNet's code has these numbers, whatever pad_token_id and relative_attention_num_buckets say.
PAD_ID = 1
BUCKETS = 32
FARTHEST = 128

LAYERS = LayerNames(
    path="encoder.layer",
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    attention="attention.attn",
    output="attention.attn.o",
    attention_norm="attention.LayerNorm",
    expand="intermediate.dense",
    contract="output.dense",
    norm="output.LayerNorm",
)


def encode(b: Builder, inputs: Inputs, s: Settings) -> ir.Value:
    """Token ids to token states."""
    path = "embeddings.position_embeddings"
    length = length_of(b, inputs.ids)
    numbers = padded_positions(b, inputs.ids, PAD_ID, path)
    x = embed(b, inputs, b.op("Gather", position_table(b, s), numbers, path=path), s)
    bias = distance_bias(b, length, s)
    mask = b.op("Add", additive_mask(b, inputs.mask, length), bias, path="mask")
    return layers(b, x, mask, LAYERS, s)


def distance_bias(b: Builder, length: ir.Value, s: Settings) -> ir.Value:
    """The bias of every pair of places, [heads, length, length], which all layers share.

    What a bucket adds depends on the distance alone, so there is one column per distance, made when the graph
    is saved; the graph only looks up column (key - query + tokens - 1).
    """
    path, tokens = "encoder.relative_attention_bias", s.tokens
    name = f"{path}.weight"
    buckets = next(iter(b.shape(name)), 0)
    if buckets < BUCKETS:
        raise InputError(f"relative_attention_num_buckets is {buckets}; MPNet looks {BUCKETS} buckets up")
    b.require(name, buckets, s.heads)

    def by_distance() -> Floats:
        found = bucket(np.arange(1 - tokens, tokens), buckets=BUCKETS, farthest=FARTHEST)
        biases = b.read(name)[found]
        return np.ascontiguousarray(biases.T)

    table = b.lazy(f"{path}.by_distance", (s.heads, 2 * tokens - 1), by_distance)
    place = rows(b, b.count("places", tokens), length, path)
    queries = b.op("Unsqueeze", place, b.ints(1), path=path)
    keys = b.op("Add", place, b.ints(tokens - 1), path=path)
    return b.op("Gather", table, b.op("Sub", keys, queries, path=path), path=path, axis=1)


FAMILY = Family(prefix="mpnet.", encode=encode, summarize=summarize)
