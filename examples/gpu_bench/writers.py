# ruff: noqa: PLC0415 - each kind imports what its own interpreter has
"""One model that writes, in a process of its own: PyTorch on its checkpoint, or a bundle's engines without torch.

python -m gpu_bench.writers KIND PATH DEVICE     KIND is eager-fp32, eager-fp16, compiled-fp16 or bundle
python -m gpu_bench.writers folder FILE.gguf TO  the same numbers as a HuggingFace folder, for PyTorch
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from gpu_bench.wire import Handler, serve

Rows = Sequence[Sequence[int]]


class Writer(Protocol):
    """A model that is loaded; everything on its device is done when a method returns."""

    def write(self, prompts: Rows, count: int) -> tuple[list[list[int]], list[float]]:
        """So many greedy tokens behind each prompt (or of each source), and when each step's were on the host."""
        ...

    def taken(self) -> int:
        """Bytes of the device's memory above a bare context."""
        ...


class Torch:
    """transformers: the cache grows, or is static and the step compiled as `generate` compiles it."""

    def __init__(self, path: str, device: str, *, half: bool, compiled: bool) -> None:
        import torch
        import transformers

        torch.backends.cuda.matmul.allow_tf32 = False
        self._torch, self._device, self._compiled = torch, device, compiled
        torch.zeros(1, device=device)
        self._free = self._left()
        config = transformers.AutoConfig.from_pretrained(path)
        self._reads = bool(config.is_encoder_decoder)
        self._start = int(getattr(config, "decoder_start_token_id", None) or 0)
        kind = transformers.AutoModelForSeq2SeqLM if self._reads else transformers.AutoModelForCausalLM
        dtype = torch.float16 if half else torch.float32
        self._model = kind.from_pretrained(path, dtype=dtype, local_files_only=True).to(device).eval()

    def write(self, prompts: Rows, count: int) -> tuple[list[list[int]], list[float]]:
        """Greedily."""
        with self._torch.inference_mode():
            return self._generated(prompts, count) if self._compiled else self._stepped(prompts, count)

    def _stepped(self, prompts: Rows, count: int) -> tuple[list[list[int]], list[float]]:
        given: dict[str, Any] = {}
        ids = self._torch.tensor(prompts, device=self._device)
        name = "input_ids"
        times, told = [perf_counter()], []
        if self._reads:
            given["encoder_outputs"] = self._model.get_encoder()(ids)
            name, ids = "decoder_input_ids", ids.new_full((len(prompts), 1), self._start)
        for _ in range(count):
            out = self._model(**{name: ids}, **given, use_cache=True)
            given["past_key_values"] = out.past_key_values
            ids = out.logits[:, -1:].argmax(-1)
            told.append(ids[:, 0].tolist())
            times.append(perf_counter())
        return [list(row) for row in zip(*told, strict=True)], times

    def _generated(self, prompts: Rows, count: int) -> tuple[list[list[int]], list[float]]:
        from transformers import LogitsProcessor, LogitsProcessorList

        torch, times = self._torch, [0.0]

        class Clock(LogitsProcessor):  # type: ignore[misc] # ships no types
            """When the logits of each step were there."""

            def __call__(self, input_ids: Any, scores: Any) -> Any:
                torch.cuda.synchronize()
                times.append(perf_counter())
                return scores

        ids = torch.tensor(prompts, device=self._device)
        times[0] = perf_counter()
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            cache_implementation="static",
            logits_processor=LogitsProcessorList([Clock()]),
        )
        return out[:, -count:].tolist(), times

    def taken(self) -> int:
        """By the device's own count."""
        return self._free - self._left()

    def _left(self) -> int:
        return int(self._torch.cuda.mem_get_info()[0]) if self._device == "cuda" else 0


class Bundle:
    """Engines of this package: what `alula serve` steps through, all sequences at once."""

    def __init__(self, path: str, device: str) -> None:
        from alula.bundles import Bundle as Opened
        from alula.core.decoding import Room
        from alula.engines import open_decoding
        from alula.engines.cuda import Cuda
        from alula.local import local_engines

        self._cuda = Cuda() if device == "cuda" else None
        if self._cuda is not None:
            self._cuda.start()
        self._free = self._left()
        bundle = Opened.open(Path(path))
        self._start = bundle.model.start_id
        self._reads = bundle.model.reads_source
        room = Room(sequences=32, blocks=2048, block_tokens=16)
        self._decoding = open_decoding(local_engines(bundle), room)

    def write(self, prompts: Rows, count: int) -> tuple[list[list[int]], list[float]]:
        """Greedily."""
        import numpy as np

        from alula.core.decoding import Work

        told: list[list[int]] = [[] for _ in prompts]
        times = [perf_counter()]
        for at, prompt in enumerate(prompts):
            given = {"input_ids": np.array([prompt], np.int64)} if self._reads else {}
            self._decoding.start(at, given)
        new = [(self._start,) if self._reads else tuple(prompt) for prompt in prompts]
        for _ in range(count):
            work = [Work(sequence=at, tokens=each, answers=True) for at, each in enumerate(new)]
            best = self._decoding.step(work).argmax(1).tolist()
            new = [(token,) for token in best]
            for said, token in zip(told, best, strict=True):
                said.append(token)
            times.append(perf_counter())
        for at in range(len(prompts)):
            self._decoding.release(at)
        return told, times

    def taken(self) -> int:
        """By the device's own count."""
        return self._free - self._left()

    def _left(self) -> int:
        return self._cuda.free_bytes()[0] if self._cuda is not None else 0


KINDS: Mapping[str, Callable[[str, str], Writer]] = {
    "eager-fp32": lambda path, device: Torch(path, device, half=False, compiled=False),
    "eager-fp16": lambda path, device: Torch(path, device, half=True, compiled=False),
    "compiled-fp16": lambda path, device: Torch(path, device, half=True, compiled=True),
    "bundle": Bundle,
}


def handlers(kind: str, path: str, device: str) -> dict[str, Handler]:
    """Load, then write when asked."""
    begun = perf_counter()
    writer = KINDS[kind](path, device)
    load_s = perf_counter() - begun

    def write(message: Mapping[str, Any]) -> dict[str, Any]:
        told, times = writer.write(message["prompts"], message["count"])
        steps = [after - before for before, after in pairwise(times)]
        return {"told": told, "first_s": steps[0], "steps_s": steps[1:]}

    return {
        "loaded": lambda message: {"load_s": load_s},
        "write": write,
        "taken": lambda message: {"bytes": writer.taken()},
    }


def as_folder(file: str, to: str) -> int:
    """What a GGUF file holds, as PyTorch reads it."""
    import numpy as np
    from safetensors.numpy import save_file

    from alula.families.gguf_decoder import read_decoder

    given, folder = read_decoder(Path(file)), Path(to)
    folder.mkdir(parents=True)
    weights = {name: np.ascontiguousarray(weight.read()) for name, weight in given.weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**given.config, "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return 0


def main(args: Sequence[str]) -> int:
    """Serve one model, or write a folder."""
    if args[0] == "folder":
        return as_folder(args[1], args[2])
    kind, path, device = args
    return serve(lambda: handlers(kind, path, device))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
