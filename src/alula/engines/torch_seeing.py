"""HunyuanOCR in transformers: what the engines' next tokens are held to; prompts with images are asked one by one."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MethodType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import transformers

from alula.core.decoding import IMAGE_AT, NOTHING_GIVEN, PATCHES, Logits
from alula.core.errors import RunError
from alula.core.model import ModelSpec
from alula.core.tensor import Feeds
from alula.engines import host
from alula.engines.foreign import said
from alula.engines.torch import load

Ints: TypeAlias = npt.NDArray[np.int64]

STRETCH = 0.1
"""What Tencent's code adds to a grid's sides where it spreads the learned positions over them."""


def seer(checkpoint_root: Path, spec: ModelSpec, *, threads: int = 0) -> TorchSeer:
    """A model in fp32 that is asked for next tokens; `threads` holds for the whole process.

    Where the graphs follow Tencent's code, the two things that transformers 5.24 has otherwise are put as Tencent has
    them: which pairs of a head turn with which axis, and how positions are spread over a grid.
    """
    torch.set_num_threads(host.threads_or_all(threads))
    loader = transformers.AutoModelForImageTextToText
    model = load(loader, checkpoint_root, torch.float32, headless=False, config=_counted(checkpoint_root))
    if spec.compat == "tencent":
        _as_tencent(model)
    return TorchSeer(model)


def _counted(root: Path) -> Mapping[str, Any] | None:
    """The config where it gives sections of a head as shares of its pairs, which transformers takes for none of them.

    None where the folder's own will do.
    """
    told = json.loads((root / "config.json").read_text("utf-8"))
    for text in (told, told.get("text_config") or {}):
        both = {**told, **text}
        for rope in filter(None, map(text.get, ("rope_scaling", "rope_parameters"))):
            for name in ("xdrope_section", "mrope_section"):
                shares = rope.get(name)
                if shares and all(0 < each < 1 for each in shares):
                    half = (both.get("head_dim") or both["attention_head_dim"]) / 2
                    rope[name] = [int(each * half) for each in shares]
                    found: Mapping[str, Any] = told
                    return found
    return None


class TorchSeer:
    """A model in eval mode. What it is given of images is what a session is: patches, and the tokens they stand for."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model: Any = model
        self._axes = len(model.model.language_model.rotary_emb.mrope_section)  # type: ignore[union-attr, arg-type]

    def read(
        self, tokens: Ints, source: Ints | None = None, last: int = 0, given: Feeds = NOTHING_GIVEN
    ) -> Logits:
        """Logits behind every token, or `last` ones, [rows, length, vocabulary]; of one row where images are given."""
        assert source is None, "nothing but the prompt is read"
        answer = self._answer(self._told(tokens, given), use_cache=False)
        logits: Logits = answer.logits[:, -last:].float().numpy()
        return logits

    def write(
        self,
        prompt: Ints,
        count: int,
        source: Ints | None = None,
        ends: Collection[int] = (),
        given: Feeds = NOTHING_GIVEN,
    ) -> Ints:
        """So many tokens behind each prompt; fewer where every row has come to one that `ends` it.

        Prompts of one length together, others one by one: nothing is padded.
        """
        assert source is None, "nothing but the prompt is read"
        if (prompt >= 0).all():
            return self._written(prompt, count, ends, given)
        rows = [self._written(row[row >= 0][None], count, ends, given)[0].tolist() for row in prompt]
        longest = max(map(len, rows))
        return np.array([[*row, *row[-1:] * (longest - len(row))] for row in rows], np.int64)

    def close(self) -> None:
        """Release the model."""
        self._model = None

    def _written(self, ids: Ints, count: int, ends: Collection[int], given: Feeds) -> Ints:
        told, cache, found, length = self._told(ids, given), None, ids[:, :0], 0
        while found.shape[1] < count and not np.isin(found, list(ends)).any(1).all():
            answer = self._answer(told, use_cache=True, cache=cache, logits_to_keep=1)
            length, cache = length + ids.shape[1], answer.cache
            ids = answer.logits[:, -1:].argmax(-1).numpy()
            found = np.concatenate([found, ids], axis=1)
            told = self._told(ids, NOTHING_GIVEN, behind=length)
        return found

    def _told(self, tokens: Ints, given: Feeds, behind: int = 0) -> dict[str, Any]:
        """Tokens and their places, as transformers counts them; images where they are given, of one row alone.

        States are given instead of ids there, since it would look for an image at each token of their id in an answer.
        """
        ids, length = torch.from_numpy(tokens.copy()), tokens.shape[1]
        if not given:
            places = torch.arange(behind, behind + length).expand(self._axes, len(tokens), length)
            return {"input_ids": ids, "position_ids": places}
        assert len(tokens) == 1, "several rows with images"
        images = [given[f"{PATCHES}.{at}"] for at in range(len(given) - 2)]
        grids = torch.tensor([[1, *each.shape[:2]] for each in images])
        flat = torch.from_numpy(np.concatenate([each.reshape(-1, each.shape[-1]) for each in images]))
        kinds = torch.zeros(ids.shape, dtype=torch.int32)
        kinds[0, torch.from_numpy(given[IMAGE_AT])] = 1
        model = self._alive().model
        with torch.inference_mode():
            seen = torch.cat(model.get_image_features(flat, grids, return_dict=True).pooler_output)
            states = model.get_input_embeddings()(ids).clone()
            states[kinds.bool()] = seen
            places, _ = model.get_rope_index(ids, kinds, grids)
        return {"inputs_embeds": states, "position_ids": places}

    def _answer(self, told: Mapping[str, Any], **options: Any) -> Any:
        try:
            with torch.inference_mode():
                return self._alive()(**told, **options)
        except (RuntimeError, IndexError, ValueError) as error:
            raise RunError(f"torch failed: {said(error)}") from error

    def _alive(self) -> Any:
        if self._model is None:
            raise RunError("session is closed")
        return self._model


def _as_tencent(model: Any) -> None:
    rotary, embeddings = model.model.language_model.rotary_emb, model.model.vision_tower.embeddings
    rotary.recomposition_frequencies = MethodType(_sections, rotary)
    embeddings.interpolate_pos_encoding = MethodType(_spread, embeddings)


def _sections(rotary: Any, freq: torch.Tensor) -> torch.Tensor:
    """Each axis turns its section of half a head, and the other half alike: [axes, batch, length, half] to a head."""
    parts = torch.split(freq, list(rotary.mrope_section), dim=-1)
    half = torch.cat([part[axis] for axis, part in enumerate(parts)], dim=-1)
    return torch.cat((half, half), dim=-1)


def _spread(embeddings: Any, states: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Learned positions by a scale of (side + 0.1) / edge, [1, patches, hidden]."""
    edge = embeddings.position_edge
    table = embeddings.position_embedding.weight[1:].reshape(1, edge, edge, -1).permute(0, 3, 1, 2).float()
    spread = torch.nn.functional.interpolate(
        table,
        scale_factor=((float(height) + STRETCH) / edge, (float(width) + STRETCH) / edge),
        mode="bilinear",
        align_corners=False,
    )
    return spread.permute(0, 2, 3, 1).reshape(1, height * width, -1).to(states.dtype)
