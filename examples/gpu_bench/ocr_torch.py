"""HunyuanOCR in PyTorch: eager, or with what is compiled into CUDA graphs; no more work than the answer needs.

The parts of transformers' model are called one by one, as our own session calls its engines: `generate` would add its
checks and waits to every token. Compiled, layers of the vision part are called with plain attention over the one image
that there is, since transformers' own code splits by lengths that it reads back to the host, which no graph takes; the
decoder has a static cache and does not look on the host, at every token, whether its positions have outgrown their
table. All of it makes PyTorch faster than its usual use.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from alula.core.decoding import IMAGE_AT, PLACES

Floats = NDArray[np.float32]
PLACES_KEPT = 1024
"""Tokens that a static cache has room for, or twice that and so on where a prompt and its answer are longer."""


def free_bytes_of(device: str) -> Callable[[], int]:
    """Tells the free bytes of a device, by its own count, on which this process has a context; 0 of a CPU."""
    torch.zeros(1, device=device)
    return lambda: int(torch.cuda.mem_get_info()[0]) if device == "cuda" else 0


class Torch:
    """A checkpoint on a device; everything is done when a method returns."""

    def __init__(self, folder: Path, device: str, *, half: bool, compiled: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        self._device, self._compiled = device, compiled
        dtype = torch.bfloat16 if half else torch.float32
        loader = transformers.AutoModelForImageTextToText
        model: Any = loader.from_pretrained(folder, dtype=dtype, local_files_only=True).to(device).eval()
        self._model, self._dtype = model, dtype
        self._tower, self._text = model.model.vision_tower, model.model.language_model
        # transformers 5.2x calls a cache so; before, it was of the past.
        taken = inspect.signature(type(self._text).forward).parameters
        self._cache_word = "cache" if "cache" in taken else "past_key_values"
        self._blocks: Callable[..., Any] = self._plain_blocks
        self._next: Callable[..., Any] = self._one
        if compiled:
            rotary = self._text.rotary_emb
            rotary.forward = MethodType(inspect.unwrap(type(rotary).forward), rotary)
            self._blocks = torch.compile(self._plain_blocks, mode="reduce-overhead", dynamic=False)
            self._next = torch.compile(self._one, mode="reduce-overhead", dynamic=False)
        self._cache: Any = None
        self._size, self._length = (0, 0), 0
        self._static: Any = None

    @torch.no_grad()
    def see(self, patches: Floats) -> Floats:
        """One image's rows, [tokens, hidden]."""
        down, across, features = patches.shape
        pixels = torch.from_numpy(patches.reshape(-1, features)).to(self._device, self._dtype)
        grid = torch.tensor([[1, down, across]])
        if self._compiled:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            states = self._blocks(self._tower.embeddings(pixels, grid))
            rows = self._tower.patch_merger(states, size=(down, across))
        else:
            rows = self._tower(pixels, grid_thw=grid).pooler_output
        found: Floats = rows.reshape(-1, rows.shape[-1]).float().cpu().numpy()
        return found

    def _plain_blocks(self, states: torch.Tensor) -> torch.Tensor:
        heads = self._model.config.vision_config.num_attention_heads
        for layer in self._tower.layers:
            inner, attention = layer.layer_norm1(states), layer.self_attn
            q, k, v = (
                each(inner).unflatten(-1, (heads, -1)).transpose(1, 2)
                for each in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            seen = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            states = states + attention.o_proj(seen.transpose(1, 2).flatten(2))
            states = states + layer.mlp(layer.layer_norm2(states))
        return states

    @torch.no_grad()
    def start(self, asked: Sequence[Any], rows: Sequence[Floats], room: int) -> Floats:
        """Prompts of one length, all at once; the logits behind each. `room` is how long answers may become."""
        tokens = torch.tensor([each.prompt for each in asked], device=self._device)
        embedded = self._text.embed_tokens(tokens)
        for at, (each, row) in enumerate(zip(asked, rows, strict=True)):
            places = torch.from_numpy(np.asarray(each.given[IMAGE_AT])).to(self._device)
            embedded[at, places] = torch.from_numpy(row).to(self._device, self._dtype)
        positions = torch.from_numpy(np.stack([each.given[PLACES] for each in asked], 1)).to(self._device)
        self._length = tokens.shape[1]
        self._cache = self._new_cache(len(asked), self._length + room)
        return self._logits(self._ran(embedded, positions, self._cache))

    def _new_cache(self, count: int, length: int) -> Any:
        config = self._model.config.text_config
        if not self._compiled:
            return transformers.DynamicCache(config=config)
        room = PLACES_KEPT
        while room < length:
            room *= 2
        if self._size == (count, room):
            self._static.reset()
        else:
            self._size, self._static = (
                (count, room),
                transformers.StaticCache(config=config, max_cache_len=room),
            )
        return self._static

    def _ran(self, embedded: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        given: dict[str, Any] = {self._cache_word: cache, "position_ids": positions, "use_cache": True}
        states = self._text(inputs_embeds=embedded, **given).last_hidden_state
        logits: torch.Tensor = self._model.lm_head(states[:, -1])
        return logits

    def _one(self, tokens: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        return self._ran(self._text.embed_tokens(tokens), positions, cache)

    @torch.no_grad()
    def step(self, tokens: Sequence[int]) -> Floats:
        """One token of everybody."""
        axes = len(self._text.rotary_emb.mrope_section)
        ids = torch.tensor(tokens, device=self._device)[:, None]
        positions = torch.full((axes, len(tokens), 1), self._length, device=self._device)
        self._length += 1
        if self._compiled:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return self._logits(self._next(ids, positions, self._cache))

    def _logits(self, found: torch.Tensor) -> Floats:
        logits: Floats = found.float().cpu().numpy()
        return logits

    def end(self) -> None:
        """Forget everybody; a static cache stays where graphs have it."""
        self._cache = None
