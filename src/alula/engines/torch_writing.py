"""Models of transformers that write text: what the engines' next tokens are held to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import transformers

from alula.core.decoding import Logits
from alula.core.errors import EngineError, InputError, RunError
from alula.core.model import ModelSpec
from alula.engines import host
from alula.engines.foreign import said
from alula.engines.torch import load

Ints: TypeAlias = npt.NDArray[np.int64]

TIED = "lm_head.weight"


@dataclass(frozen=True, kw_only=True, slots=True)
class Unpacked:
    """A checkpoint that transformers cannot open: config.json as it would be, and every weight by its name there."""

    config: Mapping[str, Any]
    weights: Mapping[str, Callable[[], npt.NDArray[np.float32]]]


def writer(
    checkpoint_root: Path, spec: ModelSpec, *, threads: int = 0, unpacked: Unpacked | None = None
) -> TorchWriter:
    """A model in fp32 that is asked for next tokens; `unpacked` stands for a folder that transformers can open.

    `threads` holds for the whole process, as PyTorch keeps one pool.
    """
    torch.set_num_threads(host.threads_or_all(threads))
    if unpacked is not None:
        return TorchWriter(spec, _made(unpacked))
    loader = transformers.AutoModelForSeq2SeqLM if spec.reads_source else transformers.AutoModelForCausalLM
    return TorchWriter(spec, load(loader, checkpoint_root, torch.float32, headless=False))


class TorchWriter:
    """A model in eval mode that reads whole rows; what fills the shorter ones stands behind them, where none looks."""

    def __init__(self, spec: ModelSpec, model: torch.nn.Module) -> None:
        self._model: torch.nn.Module | None = model
        self._reads_source = spec.reads_source

    def read(self, tokens: Ints, source: Ints | None = None) -> Logits:
        """Logits behind every token, [rows, length, vocabulary], all in one call and without any cache."""
        name = "decoder_input_ids" if self._reads_source else "input_ids"
        given = {name: torch.from_numpy(tokens.copy()), "use_cache": False, **self._given(source)}
        logits: Logits = self._answer(given).logits.float().numpy()
        return logits

    def write(self, prompt: Ints, count: int, source: Ints | None = None) -> Ints:
        """So many tokens behind each prompt, the best each time."""
        given = self._given(source)
        tokens, past, found = torch.from_numpy(prompt.copy()), None, []
        name = "decoder_input_ids" if self._reads_source else "input_ids"
        cache = _cache(self._alive())
        for _ in range(count):
            answer = self._answer({name: tokens, cache: past, "use_cache": True, **given})
            past, tokens = getattr(answer, cache), answer.logits[:, -1:].argmax(-1)
            found.append(tokens.numpy())
        return np.concatenate(found, axis=1)

    def close(self) -> None:
        """Release the model."""
        self._model = None

    def _given(self, source: Ints | None) -> dict[str, Any]:
        """What an encoder makes of a source, made once; ids below 0 are none."""
        if source is None:
            return {}
        mask = torch.from_numpy((source >= 0).astype(np.int64))
        ids = torch.from_numpy(source) * mask
        with torch.inference_mode():
            made = self._alive().get_encoder()(input_ids=ids, attention_mask=mask)  # type: ignore[operator]
        return {"encoder_outputs": made, "attention_mask": mask}

    def _answer(self, given: Mapping[str, Any]) -> Any:
        try:
            with torch.inference_mode():
                return self._alive()(**given)
        except (RuntimeError, IndexError, ValueError) as error:
            raise RunError(f"torch failed: {said(error)}") from error

    def _alive(self) -> torch.nn.Module:
        if self._model is None:
            raise RunError("session is closed")
        return self._model


def _cache(model: torch.nn.Module) -> str:
    """What transformers calls the cache, given and taken: 5.24 renamed it."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _made(unpacked: Unpacked) -> torch.nn.Module:
    """The class that config.json names, with these weights; what is tied may be missing."""
    settings = {key: value for key, value in unpacked.config.items() if key != "model_type"}
    try:
        config = transformers.AutoConfig.for_model(unpacked.config["model_type"], **settings)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        state = {name: torch.from_numpy(np.array(read())) for name, read in unpacked.weights.items()}
        missing, unknown = model.load_state_dict(state, strict=False)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise EngineError(f"transformers cannot take these weights: {said(error)}") from error
    tied = {TIED} if config.tie_word_embeddings else set()
    if left := sorted({*missing, *unknown} - tied):
        raise InputError(f"weights that are missing or have no place in transformers: {', '.join(left[:5])}")
    model.tie_weights()
    made: torch.nn.Module = model.eval()
    return made
