"""An encoder with its decoder, written greedily by bundles and by transformers eager in fp32, in turns in one process.

    PYTHONPATH=tests/models python examples/bench_t5.py MODEL BUNDLE [BUNDLE ...] [--threads 2] [--rounds 5]

Every round has a prompt of its own, of those in `tests/models/prompts.py`, and 64 tokens behind it: encoder, first
token and all. Times as fast are ratios of one round, as median [least - most]; equal are the reference's tokens that
come out before the first that differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from bench_decoders import agreeing, spread
from prove_generation import TOKENS, load, requests

from alula.bundles import Bundle
from alula.core.machine import cpu_name
from alula.generate import Generator, Request
from alula.generating import open_generator

TOGETHER = 8
Written = Callable[[Sequence[Request]], list[list[int]]]


def by_transformers(loaded: Any) -> Written:
    """One prompt after another, by `generate`."""

    def write(asked: Sequence[Request]) -> list[list[int]]:
        told = []
        for request in asked:
            ids = torch.tensor([request.source])
            with torch.no_grad():
                said = loaded.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=TOKENS,
                    min_new_tokens=TOKENS,
                    do_sample=False,
                )
            told.append(said[0, -TOKENS:].tolist())
        return told

    return write


def by_bundle(generator: Generator) -> Written:
    """All of them at once."""

    def write(asked: Sequence[Request]) -> list[list[int]]:
        told: list[list[int]] = [[] for _ in asked]
        for at, request in enumerate(asked):
            generator.add(at, request)
        while generator.busy:
            for piece in generator.step(0.0):
                if piece.error:
                    sys.exit(f"prompt {piece.id}: {piece.error}")
                told[piece.id] += [chosen.token for chosen in piece.tokens]
        return told

    return write


def main() -> int:
    """Open everybody, go round, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("bundles", type=Path, nargs="+", metavar="bundle")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    asked = requests(Bundle.open(options.bundles[0]), options.rounds + TOGETHER)
    with ExitStack() as stack:
        writers = {"transformers fp32": by_transformers(load(options.model))}
        for root in options.bundles:
            generator = stack.enter_context(
                closing(open_generator(Bundle.open(root), threads=options.threads))
            )
            writers[root.name] = by_bundle(generator)
        print(f"{cpu_name()}, {options.threads} threads, {options.rounds} rounds, {TOKENS} tokens\n")
        print(table(writers, asked, options.rounds))
    return 0


def table(writers: dict[str, Written], asked: Sequence[Request], rounds: int) -> str:
    """Markdown, a line for each writer; the first round warms up and is not counted."""
    alone: dict[str, list[float]] = {name: [] for name in writers}
    together: dict[str, list[float]] = {name: [] for name in writers}
    equal = dict.fromkeys(writers, 0)
    for number in range(rounds + 1):
        expected: list[int] = []
        for name, write in writers.items():
            took, [told] = timed(write, asked[number % rounds : number % rounds + 1])
            expected = expected or told
            side, _ = timed(write, asked[-TOGETHER:]) if name != "transformers fp32" else (0.0, [])
            if number:
                alone[name].append(took)
                equal[name] += agreeing(told, expected)
                together[name].append(TOGETHER * TOKENS / side if side else 0.0)
    first = next(iter(writers))
    lines = ["| | tokens/s of one | times as fast | of eight | equal |", "|---|---|---|---|---|"]
    for name in writers:
        rates = spread([TOKENS / each for each in alone[name]])
        ratios = spread([a / b for a, b in zip(alone[first], alone[name], strict=True)], digits=2)
        of_eight = spread(together[name], digits=0) if all(together[name]) else ""
        lines.append(f"| {name} | {rates} | {ratios} | {of_eight} | {equal[name]} / {rounds * TOKENS} |")
    return "\n".join(lines)


def timed(write: Written, asked: Sequence[Request]) -> tuple[float, list[list[int]]]:
    """Seconds, and what was written."""
    start = perf_counter()
    told = write(asked)
    return perf_counter() - start, told


if __name__ == "__main__":
    sys.exit(main())
