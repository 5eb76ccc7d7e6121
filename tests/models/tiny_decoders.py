"""Small decoder-only models with random weights, as graphs in ONNX Runtime beside transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch
import transformers
from numpy.typing import NDArray

from alula.families import open_checkpoint
from alula.families.decoder_settings import DecoderSettings, read_decoder_settings
from alula.families.llama import write_decoder
from alula.families.weights import read_weights

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Cache = dict[str, Floats]


class Runs(Protocol):
    """Outputs in their order for inputs by name."""

    def run(self, names: None, feeds: Mapping[str, NDArray[Any]], /) -> Sequence[NDArray[Any]]: ...


SIZES: Mapping[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}


WIDTH = 24
"""Places of a past that does not grow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """A graph in ONNX Runtime and the model of transformers that it was written from."""

    settings: DecoderSettings
    graph: ir.Model
    session: Runs
    reference: Any

    @property
    def in_place(self) -> bool:
        """Whether a past stays as wide as it was."""
        return self._given in {"past", "length"}

    @property
    def _given(self) -> str:
        """How many places of a cache a step gives."""
        shape = self.graph.graph.outputs[1].shape
        return "" if shape is None else str(shape[2])

    def empty(self, rows: int) -> Cache:
        """A past of no tokens, with room for some where it does not grow."""
        shape = (rows, self.settings.kv_heads, WIDTH * self.in_place, self.settings.head_size)
        past = [value for value in self.graph.graph.inputs if str(value.name).startswith("past")]
        return {str(value.name): np.zeros(shape, dtype_of(value)) for value in past}

    def step(
        self, ids: Ints, mask: Ints, positions: Ints, past: Cache, answers: Ints | None = None
    ) -> tuple[Floats, Cache]:
        """Logits of the new tokens, or of those among them that are named, and the cache with them in it."""
        if self.in_place:
            hidden = WIDTH - (mask.shape[1] - ids.shape[1])
            mask = np.concatenate([np.zeros((len(mask), hidden), np.int64), mask], axis=1)
        feeds: dict[str, NDArray[Any]] = {
            "input_ids": ids,
            "position_ids": positions,
            "attention_mask": mask,
            "answers": np.arange(ids.shape[1]) if answers is None else answers,
            **past,
        }
        logits, *present = self.session.run(None, feeds)
        if self._given == "length":
            joined = zip(past.values(), present, strict=True)
            present = [np.concatenate(pair, axis=2)[:, :, -WIDTH:] for pair in joined]
        return logits, dict(zip(past, present, strict=True))

    def parts(self, ids: Ints, lengths: Sequence[int], mask: Ints | None = None) -> Floats:
        """Logits of all tokens, given in parts of these lengths."""
        mask = np.ones_like(ids) if mask is None else mask
        positions = np.maximum(mask.cumsum(1) - 1, 0)
        past, found, at = self.empty(len(ids)), [], 0
        for length in lengths:
            end = at + length
            logits, past = self.step(ids[:, at:end], mask[:, :end], positions[:, at:end], past)
            found.append(logits)
            at = end
        assert at == ids.shape[1]
        return np.concatenate(found, axis=1)

    def expected(self, ids: Ints) -> Floats:
        """What transformers gives for whole rows without padding."""
        with torch.no_grad():
            logits: Floats = self.reference(torch.from_numpy(ids)).logits.numpy()
        return logits


def dtype_of(value: ir.Value) -> np.dtype[Any]:
    """The type that an input is fed as."""
    assert value.dtype is not None
    return value.dtype.numpy()


def checkpoint(to: Path, model_type: str, *, noise: float = 0.2, **changes: Any) -> Any:
    """Save a model with random weights, biases and norms among them."""
    config = transformers.AutoConfig.for_model(model_type, **{**SIZES, **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * noise)
    model.save_pretrained(to)
    return model.eval()


def opened(folder: Path, reference: Any) -> Decoder:
    found = open_checkpoint(str(folder))
    settings = read_decoder_settings(found.config)
    graph = write_decoder(read_weights(folder), settings)
    return Decoder(settings=settings, graph=graph, session=session_of(graph), reference=reference)


def session_of(graph: ir.Model) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(ir.to_proto(graph).SerializeToString(), options)


def tokens(rows: int, length: int, seed: int = 0) -> Ints:
    return np.random.default_rng(seed).integers(0, SIZES["vocab_size"], (rows, length))


def greedy(decoder: Decoder, ids: Ints, mask: Ints, count: int) -> Ints:
    """The best tokens, one after another."""
    positions, past = np.maximum(mask.cumsum(1) - 1, 0), decoder.empty(len(ids))
    found = []
    for _ in range(count):
        logits, past = decoder.step(ids, mask, positions, past)
        ids, positions = logits[:, -1].argmax(-1)[:, None], positions[:, -1:] + 1
        mask = np.concatenate([mask, np.ones_like(ids)], axis=1)
        found.append(ids)
    return np.concatenate(found, axis=1)
