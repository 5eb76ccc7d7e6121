"""Models of transformers that write text: what the engines' next tokens are held to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import transformers

from alula.core.decoding import NOTHING_GIVEN, Logits
from alula.core.errors import EngineError, InputError, RunError
from alula.core.model import ModelSpec
from alula.core.tensor import Feeds
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

    def read(
        self, tokens: Ints, source: Ints | None = None, last: int = 0, given: Feeds = NOTHING_GIVEN
    ) -> Logits:
        """Logits behind every token, or `last` ones, [rows, length, vocabulary], in one call without any cache."""
        assert not given, "nothing is seen"
        name = "decoder_input_ids" if self._reads_source else "input_ids"
        asked = {name: torch.from_numpy(tokens.copy()), "use_cache": False, **self._given(source)}
        logits: Logits = self._answer({**asked, **self._kept(last)}).logits[:, -last:].float().numpy()
        return logits

    def write(
        self,
        prompt: Ints,
        count: int,
        source: Ints | None = None,
        ends: Collection[int] = (),
        given: Feeds = NOTHING_GIVEN,
    ) -> Ints:
        """So many tokens behind each prompt, the best each time; fewer where every row has come to one that `ends` it.

        Ids below 0 in front of a prompt are none.
        """
        assert not given, "nothing is seen"
        answers = self.begin(prompt, source)
        found = [answers.best]
        while len(found) < count and not np.isin(np.concatenate(found, 1), list(ends)).any(1).all():
            found.append(answers.step())
        return np.concatenate(found, axis=1)

    def begin(self, prompt: Ints, source: Ints | None = None) -> Answers:
        """Read prompts, to go on by a token of each."""
        return Answers(self, prompt, self._given(source))

    def close(self) -> None:
        """Release the model."""
        self._model = None

    def step(self, tokens: torch.Tensor, past: Any, given: Mapping[str, Any]) -> tuple[Any, Ints]:
        """Run tokens behind what is in a cache; the cache with them in it, and the best token behind each row."""
        name = "decoder_input_ids" if self._reads_source else "input_ids"
        cache = _cache(self._alive())
        answer = self._answer({name: tokens, cache: past, "use_cache": True, **given, **self._kept(1)})
        best: Ints = answer.logits[:, -1:].argmax(-1).numpy()
        return getattr(answer, cache), best

    def _kept(self, last: int) -> dict[str, int]:
        """To have no more logits made than are wanted, where a model knows how."""
        known = "logits_to_keep" in inspect.signature(self._alive().forward).parameters
        return {"logits_to_keep": last} if last and known else {}

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


class Answers:
    """Rows that are gone on with by the best token of each; `best` is what comes behind all that was run."""

    def __init__(self, writer: TorchWriter, prompt: Ints, given: Mapping[str, Any]) -> None:
        self._writer, self._given = writer, given
        mask = (prompt >= 0).astype(np.int64)
        # What stands before a shorter prompt is hidden, and its tokens are counted from where it begins.
        self._mask = None if mask.all() else torch.from_numpy(mask)
        self._past, self.best = writer.step(torch.from_numpy(prompt * mask), None, self._all())

    def step(self) -> Ints:
        """Run the best token of each row; the next ones."""
        if self._mask is not None:
            self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        self._past, self.best = self._writer.step(torch.from_numpy(self.best), self._past, self._all(new=1))
        return self.best

    def _all(self, new: int = 0) -> Mapping[str, Any]:
        if self._mask is None:
            return self._given
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)
        return {**self._given, "attention_mask": self._mask, "position_ids": positions[:, -new:]}


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
