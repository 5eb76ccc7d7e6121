# ruff: noqa: PLC0415 - each kind imports what its own environment has
"""One decoder in a process of its own, for `bench_decoders.py`: it loads, then answers lines of JSON with timings.

    python decoder_worker.py KIND MODEL THREADS

A line names `prompts`, rows of token ids, and how many `tokens` to write greedily behind each. Nothing here needs alula
but the kind "alula": every other one runs in its peer's own environment.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

Rows = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Ran:
    """What was written behind each prompt, seconds to the first token, and seconds a step took from then on."""

    tokens: list[list[int]]
    first_s: float
    step_s: float


Run = Callable[[Rows, int], Ran]


def transformers_eager(model: str, threads: int) -> Run:
    """What transformers does in fp32, by `generate`."""
    import torch
    from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList

    torch.set_num_threads(threads)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    class Clock(LogitsProcessor):  # type: ignore[misc] # ships no types
        """When the logits of each step were there."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            self.times.append(perf_counter())
            return scores

    def run(prompts: Rows, count: int) -> Ran:
        ids, clock, start = torch.tensor(prompts), Clock(), perf_counter()
        with torch.no_grad():
            told = loaded.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                logits_processor=LogitsProcessorList([clock]),
            )
        return _ran(told[:, ids.shape[1] :].tolist(), [start, *clock.times])

    return run


def openvino_genai(model: str, threads: int, hint: str) -> Run:
    """openvino-genai's pipeline; its own clock, since it gives a batch back as a whole."""
    import numpy as np
    import openvino as ov
    import openvino_genai as genai  # type: ignore[import-not-found] # in its own environment

    properties: dict[str, Any] = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": threads}
    if hint == "f32" and model.endswith("fp32"):
        properties["KV_CACHE_PRECISION"] = "f32"
    pipeline = genai.LLMPipeline(model, "CPU", **properties)
    config = genai.GenerationConfig()
    config.ignore_eos, config.do_sample = True, False

    def run(prompts: Rows, count: int) -> Ran:
        config.max_new_tokens = count
        ids = np.array(prompts, np.int64)
        given = pipeline.generate(genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids))), config)
        metrics = given.perf_metrics
        # Its time per token is that of a batch, shared out among the rows.
        step = len(ids) * metrics.get_tpot().mean / 1e3 if count > 1 else 0.0
        return Ran(given.tokens, metrics.get_ttft().mean / 1e3, step)

    return run


def llama_cpp(model: str, threads: int) -> Run:
    """llama.cpp, every prompt a sequence of one batch; without the buffers that it crashes in on CPUs with AMX."""
    import ctypes

    import llama_cpp as library  # type: ignore[import-not-found] # likewise
    import numpy as np

    library.llama_backend_init()
    chosen = library.llama_model_default_params()
    chosen.use_extra_bufts = "amx_bf16" not in Path("/proc/cpuinfo").read_text("utf-8")
    loaded = library.llama_model_load_from_file(model.encode(), chosen)
    settings = library.llama_context_default_params()
    settings.n_ctx = settings.n_batch = 2048
    settings.n_seq_max, settings.kv_unified = 8, True
    settings.n_threads = settings.n_threads_batch = threads
    context = library.llama_init_from_model(loaded, settings)
    words = library.llama_vocab_n_tokens(library.llama_model_get_vocab(loaded))
    batch = library.llama_batch_init(2048, 0, 1)

    def step(rows: Rows, at: int) -> list[int]:
        ends, batch.n_tokens = [], 0
        for sequence, row in enumerate(rows):
            for place, token in enumerate(row, start=at):
                n = batch.n_tokens
                batch.token[n], batch.pos[n], batch.logits[n] = token, place, False
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, sequence
                batch.n_tokens += 1
            ends.append(batch.n_tokens - 1)
            batch.logits[ends[-1]] = True
        if failed := library.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode gave {failed}")
        best = []
        for end in ends:
            pointer = ctypes.cast(library.llama_get_logits_ith(context, end), ctypes.POINTER(ctypes.c_float))
            best.append(int(np.ctypeslib.as_array(pointer, (words,)).argmax()))
        return best

    def run(prompts: Rows, count: int) -> Ran:
        library.llama_memory_clear(library.llama_get_memory(context), True)
        times, told = [perf_counter()], [step(prompts, 0)]
        times.append(perf_counter())
        for at in range(len(prompts[0]), len(prompts[0]) + count - 1):
            told.append(step([[token] for token in told[-1]], at))
            times.append(perf_counter())
        return _ran([list(each) for each in zip(*told, strict=True)], times)

    return run


def alula(model: str, threads: int) -> Run:
    """A decoder's engine of this package, all sequences in one step, prompts whole."""
    import numpy as np
    from bench_decoders import engine_of

    from alula.core.decoding import Room, Work
    from alula.engines import open_decoding

    room = Room(sequences=16, blocks=256, block_tokens=32)
    session = open_decoding({"decoder": engine_of(Path(model))}, room, threads=threads)

    def run(prompts: Rows, count: int) -> Ran:
        times = [perf_counter()]
        new = [tuple(prompt) for prompt in prompts]
        told: list[list[int]] = [[] for _ in prompts]
        for at in range(len(prompts)):
            session.start(at)
        for _ in range(count):
            logits = session.step(
                [Work(sequence=at, tokens=each, answers=True) for at, each in enumerate(new)]
            )
            best = np.argmax(logits, axis=1).tolist()
            new = [(token,) for token in best]
            for said, token in zip(told, best, strict=True):
                said.append(token)
            times.append(perf_counter())
        for at in range(len(prompts)):
            session.release(at)
        return _ran(told, times)

    return run


def _ran(tokens: list[list[int]], times: Sequence[float]) -> Ran:
    start, first, *rest = times
    return Ran(tokens, first - start, (rest[-1] - first) / len(rest) if rest else 0.0)


KINDS: dict[str, Callable[[str, int], Run]] = {
    "transformers": transformers_eager,
    "genai-f32": lambda model, threads: openvino_genai(model, threads, "f32"),
    "genai-bf16": lambda model, threads: openvino_genai(model, threads, "bf16"),
    "llama.cpp": llama_cpp,
    "alula": alula,
}


def peak_bytes() -> int:
    """The most memory that this program held; `getrusage` knows of the one that it was forked from, too."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    """Load, say so, and answer until standard input ends."""
    kind, model, threads = sys.argv[1:]
    # What libraries print goes elsewhere: lines of JSON alone are on this one.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    start = perf_counter()
    run = KINDS[kind](model, int(threads))
    print(json.dumps({"load_s": perf_counter() - start}), file=out, flush=True)
    for line in sys.stdin:
        asked, before = json.loads(line), process_time()
        answer = asdict(run(asked["prompts"], asked["tokens"]))
        spent = {
            "cpu_s": process_time() - before,
            "peak_bytes": peak_bytes(),
        }
        print(json.dumps({**answer, **spent}), file=out, flush=True)


if __name__ == "__main__":
    main()
