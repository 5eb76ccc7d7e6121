"""Whether a bundle writes what transformers writes: 50 prompts, 64 tokens each, greedily, in every kind of company.

    python examples/prove_generation.py MODEL BUNDLE [BUNDLE ...] [--kept FILE]

MODEL is the checkpoint that the bundles were built from, a folder or a GGUF file (for which transformers needs
accelerate and gguf). transformers runs it in fp32, one prompt at a time; `--kept` keeps what it said for the next time.
Each bundle then writes the same answers alone, all together, in chunks of 16 tokens and with one joining at every step.
An answer may leave the reference's where the two best logits of that are less than 1e-3 apart, in one token of a
hundred at the most; every such place is listed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from prompts import PROMPTS

from alula.bundles import Bundle
from alula.generate import Generator, Limits, Request
from alula.generating import open_generator
from alula.prompting import Prompts

TOKENS = 64
CHUNK = 16
NEAR = 1e-3
SHARE = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the reference wrote, and how far its two best logits were apart for each token."""

    tokens: tuple[int, ...]
    gaps: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """A company that answers are written in."""

    name: str
    limits: Callable[[Limits], Limits] = lambda limits: limits
    at_once: int = len(PROMPTS)
    joins: int = len(PROMPTS)


def chunked(limits: Limits) -> Limits:
    """Prompts in pieces, several of them in a step."""
    return replace(limits, chunk_tokens=CHUNK, step_tokens=limits.sequences + 4 * CHUNK)


WAYS = (
    Way(name="alone, prompts whole", at_once=1),
    Way(name="together"),
    Way(name="together, in chunks of 16", limits=chunked),
    Way(name="one joins at every step", joins=1),
)


def requests(bundle: Bundle, count: int) -> list[Request]:
    """The prompts as the bundle reads them: greedy, and written on beyond any end."""
    prompts = Prompts.open(bundle)
    made = [prompts.text(text, {"max_tokens": TOKENS, "temperature": 0}) for text in PROMPTS[:count]]
    return [replace(each, stopping=replace(each.stopping, end_tokens=())) for each in made]


def reference(model: Path, asked: Sequence[Request]) -> Iterator[Answer]:
    """What transformers writes, in fp32 and with its own cache."""
    import torch  # noqa: PLC0415 - not where the answers are kept

    loaded = load(model)
    for request in asked:
        ids = torch.tensor([request.source or request.prompt])
        with torch.no_grad():
            said = loaded.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=TOKENS,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
        best = torch.cat(said.logits).float().topk(2).values
        tokens = said.sequences[0, -TOKENS:].tolist()
        yield Answer(tokens=tuple(tokens), gaps=tuple((best[:, 0] - best[:, 1]).tolist()))


def load(model: Path) -> Any:
    """A checkpoint in transformers, which is told of no end."""
    import torch  # noqa: PLC0415 - likewise
    import transformers  # noqa: PLC0415

    auto: Any = transformers
    if model.is_file():
        whole = auto.GgufConfig(dequantize=True)
        loaded = auto.AutoModelForCausalLM.from_pretrained(
            model.parent, gguf_file=model.name, dtype=torch.float32, quantization_config=whole
        )
    else:
        encodes = auto.AutoConfig.from_pretrained(model).is_encoder_decoder
        kind = auto.AutoModelForSeq2SeqLM if encodes else auto.AutoModelForCausalLM
        loaded = kind.from_pretrained(model, dtype=torch.float32)
    loaded.generation_config.eos_token_id = None
    loaded.generation_config.pad_token_id = 0
    return loaded.eval()


def expected(model: Path, asked: Sequence[Request], kept: Path | None) -> list[Answer]:
    """The reference's answers, from the file they are kept in if they are there."""
    asking = [[*each.source, -1, *each.prompt] for each in asked]
    if kept and kept.is_file():
        raw = json.loads(kept.read_text("utf-8"))
        if raw["asked"] != asking:
            sys.exit(f"{kept} keeps answers to other prompts; name another file")
        return [Answer(tokens=tuple(row["tokens"]), gaps=tuple(row["gaps"])) for row in raw["answers"]]
    answers = list(reference(model, asked))
    if kept:
        kept.write_text(json.dumps({"asked": asking, "answers": [asdict(each) for each in answers]}), "utf-8")
    return answers


def written(generator: Generator, way: Way, asked: Sequence[Request]) -> dict[int, list[int]]:
    """The tokens of every answer, in one company."""
    usual = generator.limits
    generator.limits = way.limits(usual)
    tokens: dict[int, list[int]] = {at: [] for at in range(len(asked))}
    coming, there = list(enumerate(asked)), set[int]()
    while coming or generator.busy:
        for at, request in coming[: min(way.joins, way.at_once - len(there))]:
            generator.add(at, request)
            there.add(at)
            coming.pop(0)
        for piece in generator.step(0.0):
            if piece.error:
                sys.exit(f"prompt {piece.id}: {piece.error}")
            tokens[piece.id] += [chosen.token for chosen in piece.tokens]
            if piece.ending:
                there.remove(piece.id)
    generator.limits = usual
    return tokens


def differences(
    given: Mapping[int, Sequence[int]], answers: Sequence[Answer]
) -> list[tuple[int, int, float]]:
    """Where an answer leaves the reference's: prompt, token, and how far the reference's best two were apart there."""
    found = []
    for at, answer in enumerate(answers):
        if len(given[at]) != len(answer.tokens):
            sys.exit(f"prompt {at}: {len(given[at])} tokens, the reference wrote {len(answer.tokens)}")
        apart = [
            place for place, pair in enumerate(zip(given[at], answer.tokens, strict=True)) if len({*pair}) > 1
        ]
        if apart:
            found.append((at, apart[0], answer.gaps[apart[0]]))
    return found


def prove(root: Path, asked: Sequence[Request], answers: Sequence[Answer]) -> bool:
    """Write every answer in every company, and print what differs; whether that is allowed."""
    bundle = Bundle.open(root)
    engine, count = bundle.engine("decoder"), sum(len(answer.tokens) for answer in answers)
    print(f"{bundle.model.name}, {engine.graph.precision} on {engine.target}")
    good = True
    with closing(open_generator(bundle)) as generator:
        for way in WAYS:
            start = perf_counter()
            found = differences(written(generator, way, asked), answers)
            took = perf_counter() - start
            right = len(found) <= SHARE * count and all(gap < NEAR for _, _, gap in found)
            good &= right
            print(
                f"  {way.name}: {len(answers) - len(found)} of {len(answers)} answers alike, {len(found)} of {count} "
                f"tokens where one leaves the reference; {took:.0f} s: {'right' if right else 'WRONG'}"
            )
            for at, place, gap in found:
                print(f"    prompt {at}, token {place}: the reference's best two were {gap:.2g} apart")
    return good


def main() -> int:
    """0 if every bundle writes what the reference writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("bundles", type=Path, nargs="+", metavar="bundle")
    parser.add_argument("--kept", type=Path, help="a file to keep the reference's answers in")
    parser.add_argument("--count", type=int, default=len(PROMPTS), help="prompts, fewer than all for a look")
    options = parser.parse_args()
    asked = requests(Bundle.open(options.bundles[0]), options.count)
    answers = expected(options.model, asked, options.kept)
    proved = [prove(root, asked, answers) for root in options.bundles]
    return 0 if all(proved) else 1


if __name__ == "__main__":
    sys.exit(main())
