"""What a model that writes text is held to: scripts, and what the best reference at hand says of each next token.

References read whole rows at once, with no cache and no padding; candidates never do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from alula import families
from alula.codecs import TextCodec
from alula.core.check import Reference
from alula.core.decoding import Logits
from alula.core.engine import Session
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.core.tensor import Array, Feeds
from alula.rehearsed import Rehearsed
from alula.running import running
from alula.verify import Script
from alula.verify.texts import SINGLES

Ints: TypeAlias = npt.NDArray[np.int64]

NOTHING = -1
"""In place of a token: none."""

LOGITS_BYTES = 1 << 28
"""Of the reference's logits, all of which are held while a build lasts."""

ANSWER = 16
"""Tokens that a prompt is gone on with."""

TEXT = 48
"""Tokens of a text that are given one by one."""

LONGEST = 64
"""Tokens of a text at most."""

BEGINNING = 16
"""Tokens of a text that are a prompt."""

DRAWN = (2, 7, 30, 300)
"""Lengths of random ids: short and long ones side by side, one of them many blocks of a cache long."""

READ_AT_ONCE = 1024
"""Padded tokens that a reference reads in one call."""


class Teacher(Protocol):
    """A reference: it reads rows, and writes the best token behind them, again and again.

    A source is what an encoder reads, `NOTHING` where it is none.
    """

    def read(self, tokens: Ints, source: Ints | None = None) -> Logits:
        """Logits behind every token, [rows, length, vocabulary]."""
        ...

    def write(self, prompt: Ints, count: int, source: Ints | None = None) -> Ints:
        """So many tokens behind each prompt, [rows, count]."""
        ...

    def close(self) -> None:
        """Release the model."""
        ...


def rehearse(
    reference: Reference, checkpoint: families.Checkpoint, spec: ModelSpec, profile: Profile, tokenizer: Path
) -> Rehearsed:
    """Ask the reference for prompts of random ids and for the texts that ship, as long as the profile takes."""
    with opened_teacher(reference, checkpoint, spec, profile) as teacher:
        scripts = tuple(scripts_for(teacher, spec, profile, tokenizer))
        logits = tuple(_asked(teacher, scripts))
    return Rehearsed(reference=reference, spec=spec, scripts=scripts, logits=logits)


def scripts_for(teacher: Teacher, spec: ModelSpec, profile: Profile, tokenizer: Path) -> Iterator[Script]:
    """Random ids and real texts one token after another, and prompts that are gone on with as the reference does."""
    drawn, texts = list(_drawn(spec, profile)), list(_texts(spec, profile, tokenizer))
    most = profile.axes["total"].max
    answer, text = (_length(size, spec, len(drawn) + len(texts), most) for size in (ANSWER, TEXT))
    if spec.reads_source:
        yield from _answered(teacher, spec, [*drawn, *texts], answer)
        return
    for script in (*drawn, *texts):
        if len(script.prompt) > 1:
            size = len(script.prompt)
            begun = max(1, size - text, min(BEGINNING, size // 4))
            yield replace(script, prompt=script.prompt[:begun], follow=script.prompt[begun:])
    begun = max(1, min(BEGINNING, most // 2))
    whole = [script for script in (texts or drawn) if len(script.prompt) >= begun]
    prompts = [replace(script, prompt=script.prompt[:begun]) for script in whole]
    yield from _answered(teacher, spec, prompts, answer)


@contextmanager
def opened_teacher(
    reference: Reference, checkpoint: families.Checkpoint, spec: ModelSpec, profile: Profile
) -> Iterator[Teacher]:
    """Transformers on the checkpoint, or the graphs as they are written, in ONNX Runtime."""
    if reference == "pytorch":
        from alula.engines.torch_writing import Unpacked, writer  # noqa: PLC0415 - seconds to import

        unpacked = None
        if families.is_gguf(checkpoint):
            weights = {name: weight.read for name, weight in families.weights_of(checkpoint).items()}
            unpacked = Unpacked(config=checkpoint.config, weights=weights)
        with closing(writer(checkpoint.root, spec, unpacked=unpacked)) as teacher:
            yield teacher
        return
    with ExitStack() as opened:
        sessions = {
            part.name: opened.enter_context(
                running(families.write(checkpoint, spec, part.name), profile.of(part.axes))
            )
            for part in spec.parts
        }
        yield OwnGraphs(spec, sessions)


class OwnGraphs:
    """The graphs of a model that writes text, read whole: no past but where it writes."""

    def __init__(self, spec: ModelSpec, sessions: Mapping[str, Session]) -> None:
        self._part, self._sessions = spec.part("decoder"), sessions

    def read(self, tokens: Ints, source: Ints | None = None) -> Logits:
        """Logits behind every token, in one call."""
        logits, _ = self._step(tokens, self._nothing(len(tokens)), self._read_source(source))
        return logits

    def write(self, prompt: Ints, count: int, source: Ints | None = None) -> Ints:
        """So many tokens behind each prompt, the best each time."""
        seen, past, tokens, found = self._read_source(source), self._nothing(len(prompt)), prompt, []
        for _ in range(count):
            logits, past = self._step(tokens, past, seen)
            tokens = logits[:, -1:].argmax(-1)
            found.append(tokens)
        return np.concatenate(found, axis=1)

    def close(self) -> None:
        """Nothing: whoever opened the sessions closes them."""

    def _read_source(self, source: Ints | None) -> Feeds:
        if source is None:
            return {}
        mask = (source != NOTHING).astype(np.int64)
        states = self._sessions["encoder"].run({"input_ids": source * mask, "attention_mask": mask})
        return {"encoder_attention_mask": mask, **self._sessions["cross"].run(states)}

    def _step(self, tokens: Ints, past: Feeds, seen: Feeds) -> tuple[Logits, Feeds]:
        rows, new = tokens.shape
        before = next(iter(past.values())).shape[2]
        feeds: dict[str, Array] = {
            "input_ids": tokens,
            "position_ids": np.tile(np.arange(before, before + new), (rows, 1)),
            "attention_mask": np.ones((rows, before + new), np.int64),
            "answers": np.arange(new),
        }
        given = self._sessions["decoder"].run({**feeds, **past, **seen})
        logits: Logits = given["logits"].astype(np.float32, copy=False)
        return logits, {name: given[name.replace("past", "present", 1)] for name in past}

    def _nothing(self, rows: int) -> Feeds:
        return {
            spec.name: np.zeros(spec.sized({"batch": rows, "past": 0}), spec.dtype)
            for spec in self._part.inputs
            if spec.name.startswith("past.")
        }


def _length(size: int, spec: ModelSpec, prompts: int, most: int) -> int:
    """So many tokens behind each prompt, or as many as all their logits can be held of."""
    share = LOGITS_BYTES / (4 * spec.vocab_size * prompts * (ANSWER + TEXT))
    return max(2, min(int(size * min(1.0, share)), most // 2))


def _longest(spec: ModelSpec, profile: Profile) -> int:
    """Tokens of a source, or of a prompt that leaves room for as many behind it."""
    return profile.axes["source"].max if spec.reads_source else profile.axes["total"].max // 2


def _drawn(spec: ModelSpec, profile: Profile) -> Iterator[Script]:
    """Random ids, as prompts or as what an encoder reads."""
    rng = np.random.default_rng(0)
    most = _longest(spec, profile)
    for at, wanted in enumerate(DRAWN):
        size = max(1, min(wanted, most))
        ids = tuple(rng.integers(0, spec.vocab_size, size).tolist())
        yield _script(spec, f"drawn {at}", ids, drawn=True)


def _texts(spec: ModelSpec, profile: Profile, tokenizer: Path) -> Iterator[Script]:
    """The texts that ship, where there is a tokenizer."""
    if not (tokenizer / "tokenizer.json").is_file():
        return
    codec = TextCodec.open(tokenizer, spec)
    most = _longest(spec, profile)
    for at, text in enumerate(SINGLES):
        if ids := codec.prompt(text)[: min(most, LONGEST)]:
            yield _script(spec, f"text {at}", ids)


def _script(spec: ModelSpec, name: str, ids: tuple[int, ...], *, drawn: bool = False) -> Script:
    if spec.reads_source:
        return Script(name=name, prompt=(spec.start_id,), follow=(), source=ids, drawn=drawn)
    return Script(name=name, prompt=ids, follow=(), drawn=drawn)


def _answered(teacher: Teacher, spec: ModelSpec, prompts: Sequence[Script], count: int) -> Iterator[Script]:
    """Prompts of one length, each with the tokens that the reference goes on with; a T5 up to one that ends it."""
    rows = teacher.write(_stack([script.prompt for script in prompts]), count, _sources(prompts))
    for script, row in zip(prompts, rows.tolist(), strict=True):
        ends = [at for at, token in enumerate(row, start=1) if token in spec.end_ids]
        follow = tuple(row[: ends[0]] if ends and spec.reads_source else row)
        yield replace(script, name=f"{script.name}, gone on with", follow=follow, greedy=True)


def _asked(teacher: Teacher, scripts: Sequence[Script]) -> list[Logits]:
    """The logits of each script; those side by side are filled behind their ends, where nothing looks."""
    found: dict[Script, Logits] = {}
    for group in _side_by_side(scripts):
        read = teacher.read(_stack([script.tokens for script in group]), _sources(group))
        for script, logits in zip(group, read, strict=True):
            found[script] = logits[len(script.prompt) - 1 : len(script.tokens)].copy()
    return [found[script] for script in scripts]


def _side_by_side(scripts: Sequence[Script]) -> Iterator[list[Script]]:
    """Short ones first, as many as are read at once."""
    group: list[Script] = []
    for script in sorted(scripts, key=lambda each: len(each.tokens) + len(each.source)):
        size = max(len(script.tokens), len(script.source))
        if group and (len(group) + 1) * size > READ_AT_ONCE:
            yield group
            group = []
        group.append(script)
    yield group


def _sources(group: Sequence[Script]) -> Ints | None:
    """What an encoder reads, `NOTHING` behind the shorter ones."""
    return _stack([script.source for script in group], NOTHING) if group[0].source else None


def _stack(rows: Sequence[tuple[int, ...]], filled: int = 0) -> Ints:
    longest = max(map(len, rows))
    return np.array([(*row, *[filled] * (longest - len(row))) for row in rows], np.int64)
