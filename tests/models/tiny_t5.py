"""Small T5s with random weights, as whole checkpoints, and their three parts in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import save_file

from alula.families import open_checkpoint
from alula.families.t5 import write
from alula.families.t5_settings import T5Settings, read_settings

Arrays: TypeAlias = dict[str, NDArray[Any]]
Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]

VOCAB = 41
# Heads that together are larger than the hidden size, and sides of different depth, so that nothing fits by chance.
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
}
PARTS = ("encoder", "cross", "decoder")


def checkpoint(
    to: Path, kind: str = "t5", *, tied: bool = True, seed: int = 0, noise: float = 0.1, **settings: Any
) -> Path:
    """A folder as the hub has it: what is tied is stored once, and config.json says whether it is."""
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **settings, "tie_word_embeddings": tied})
    torch.manual_seed(seed)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        del state[name]
    if not tied:
        state["lm_head.weight"] = torch.randn_like(state["shared.weight"]) * 0.3
    for name, value in state.items():
        value.add_(torch.randn_like(value) * (1.0 if "relative" in name else noise))
    config.architectures = [type(model).__name__]
    config.save_pretrained(to)
    save_file(state, to / "model.safetensors", metadata={"format": "pt"})
    return to


def reference(folder: Path) -> Any:
    """What transformers makes of a checkpoint."""
    loader: Any = transformers.AutoModelForSeq2SeqLM
    return loader.from_pretrained(folder).eval()


def part(folder: Path, name: str, opset: int = 23) -> ir.Model:
    """One part as a graph."""
    return write(open_checkpoint(str(folder)), name, opset)


def settings_of(folder: Path) -> T5Settings:
    """What the graphs go by."""
    return read_settings(open_checkpoint(str(folder)).config)


def session_of(model: ir.Model) -> onnxruntime.InferenceSession:
    """A graph in ONNX Runtime, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    serialized = ir.to_proto(model).SerializeToString()
    return onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, feeds: Arrays) -> Arrays:
    """What a session gives, by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


class Written:
    """The three parts of a checkpoint, as a request goes through them."""

    def __init__(self, folder: Path) -> None:
        self.settings = settings_of(folder)
        self.sessions = {name: session_of(part(folder, name)) for name in PARTS}

    def source(self, ids: Ints, mask: Ints) -> Arrays:
        """What the decoder needs of a source, computed once."""
        states = self.encode(ids, mask)
        return {"encoder_attention_mask": mask, **run(self.sessions["cross"], {"states": states})}

    def encode(self, ids: Ints, mask: Ints) -> Floats:
        """The encoder's states."""
        return run(self.sessions["encoder"], {"input_ids": ids, "attention_mask": mask})["states"]

    def nothing(self, rows: int = 1) -> Arrays:
        """The cache before the first token."""
        s = self.settings
        empty = np.zeros((rows, s.heads, 0, s.head_size), np.float32)
        names = [(index, name) for index in range(s.decoder_layers) for name in ("key", "value")]
        return {f"past.{index}.{name}": empty for index, name in names}

    def step(
        self,
        source: Arrays,
        ids: Ints,
        past: Arrays,
        mask: Ints | None = None,
        answers: Ints | None = None,
    ) -> tuple[Floats, Arrays]:
        """Logits of some tokens behind a cache, or of those among them that are named, and the cache with them."""
        if mask is None:
            total = ids.shape[1] + past["past.0.key"].shape[2]
            mask = np.ones((len(ids), total), np.int64)
        positions = np.maximum(mask.cumsum(1)[:, -ids.shape[1] :] - 1, 0)
        answers = np.arange(ids.shape[1]) if answers is None else answers
        own: Arrays = {
            "input_ids": ids,
            "position_ids": positions,
            "attention_mask": mask,
            "answers": answers,
        }
        given = run(self.sessions["decoder"], {**own, **source, **past})
        logits = given.pop("logits")
        return logits, {name.replace("present", "past"): value for name, value in given.items()}

    def in_steps(self, source: Arrays, ids: Ints, sizes: Sequence[int]) -> Floats:
        """Logits of all tokens, given in pieces of these sizes."""
        assert sum(sizes) == ids.shape[1]
        past, found, start = self.nothing(len(ids)), [], 0
        for size in sizes:
            logits, past = self.step(source, ids[:, start : start + size], past)
            found.append(logits)
            start += size
        return np.concatenate(found, axis=1)

    def greedy(self, ids: Ints, count: int, start: int = 0, end: int = 1) -> list[int]:
        """The likeliest tokens one by one, up to the end's."""
        source, past, made = self.source(ids, np.ones_like(ids)), self.nothing(), [start]
        while len(made) <= count and (made[-1] != end or len(made) == 1):
            logits, past = self.step(source, np.array([made[-1:]]), past)
            made.append(int(logits[0, -1].argmax()))
        return made


def sentences(lengths: Sequence[int], *, seed: int = 0, side: str = "right") -> tuple[Ints, Ints]:
    """Ids and mask of rows of these lengths, padded on one side."""
    width = max(lengths)
    ids = np.random.default_rng(seed).integers(2, VOCAB, (len(lengths), width))
    places = np.arange(width)
    mask = np.stack([(places < n) if side == "right" else (places >= width - n) for n in lengths])
    return np.where(mask, ids, 0), mask.astype(np.int64)
