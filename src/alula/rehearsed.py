"""Scripts that a model which writes text performs, as it serves: with a cache, prompts of many lengths side by side."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from alula.bundles import Stored
from alula.core.check import Check, Reference
from alula.core.decoding import Decoding, Logits, Room, Work
from alula.core.engine import Engine
from alula.core.model import ModelSpec
from alula.core.tensor import Feeds
from alula.engines import open_decoding
from alula.verify import Said, Script, compare_next_tokens, same_next_tokens, some_of

ROWS_ALONE = 4
"""Scripts that are run again by themselves."""

TIMED_BEHIND = 256
"""Tokens that stand before the one that is timed."""

BLOCK = 16

_IDS = ("prompt", "follow", "source")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsed:
    """Scripts with the logits of one reference, by the order of the scripts."""

    reference: Reference
    spec: ModelSpec
    scripts: tuple[Script, ...]
    logits: tuple[Logits, ...]

    def judge(
        self, engines: Mapping[str, Engine], precision: str, *, threads: int = 0, promised: bool = False
    ) -> tuple[Check, ...]:
        """How far the engines of all parts are from the reference, and from themselves another way.

        Some scripts are performed side by side and alone, and both are held to the reference: engines may have other
        kernels for few tokens than for many. `promised` says that a budget decides on rows of the user's, and these
        scripts only tell a precision from a fault.
        """
        chosen = self._telling(precision)
        some = [chosen[at] for at in some_of([script for script, _ in chosen], ROWS_ALONE)]
        scripts = [script for script, _ in chosen]
        with closing(open_decoding(engines, room_for(scripts), threads=threads)) as decoding:
            together = dict(zip(scripts, perform(decoding, scripts), strict=True))
            alone = [perform(decoding, [script])[0] for script, _ in some]
            chunked = [perform(decoding, [script], chunk=_half(script))[0] for script, _ in some]
        said = [Said(script=s, expected=expected, given=together[s]) for s, expected in chosen]
        singly = [
            Said(script=s, expected=expected, given=given)
            for (s, expected), given in zip(some, alone, strict=True)
        ]
        beside = [
            Said(script=each.script, expected=each.given, given=together[each.script]) for each in singly
        ]
        pieces = [
            Said(script=each.script, expected=each.given, given=given)
            for each, given in zip(singly, chunked, strict=True)
        ]
        return (
            *compare_next_tokens([*said, *singly], precision, self.reference, promised=promised),
            same_next_tokens("batch_equals_single", beside, precision),
            same_next_tokens("chunks_equal_whole", pieces, precision),
        )

    def _telling(self, precision: str) -> list[tuple[Script, Logits]]:
        """The scripts that say something about a precision: random ids say nothing about weights of few bits."""
        pairs = list(zip(self.scripts, self.logits, strict=True))
        real = [pair for pair in pairs if not pair[0].drawn]
        return (precision.endswith("-weights") and real) or pairs

    def stored(self, most: int) -> Stored:
        """As much as fits into so many bytes, the shortest scripts first, for a bundle to check itself with."""
        size = 0
        feeds: list[Feeds] = []
        outputs: list[Feeds] = []
        order = sorted(range(len(self.scripts)), key=lambda at: (self.logits[at].shape[0], at))
        for at in order:
            script, logits = self.scripts[at], self.logits[at]
            rows = max(1, min(len(logits), (most - size) // logits[0].nbytes))
            size += rows * logits[0].nbytes + sum(array.nbytes for array in script.given.values())
            if feeds and size > most:
                break
            feeds.append(_as_feeds(replace(script, follow=script.follow[:rows])))
            outputs.append({"logits": logits[:rows]})
        return Stored(reference=self.reference, feeds=tuple(feeds), outputs=tuple(outputs))


def rehearsed(stored: Stored, spec: ModelSpec) -> Rehearsed:
    """What a bundle stored, as scripts again."""
    return Rehearsed(
        reference=stored.reference,
        spec=spec,
        scripts=tuple(_as_script(feeds, f"stored {at}") for at, feeds in enumerate(stored.feeds)),
        logits=tuple(outputs["logits"].astype(np.float32) for outputs in stored.outputs),
    )


def perform(decoding: Decoding, scripts: Sequence[Script], *, chunk: int = 0) -> list[Logits]:
    """The logits of each script: all side by side, their prompts in one step (in chunks if one is named)."""
    for at, script in enumerate(scripts):
        decoding.start(at, _given(script))
    found: list[list[Logits]] = [[] for _ in scripts]
    done = [0] * len(scripts)
    while going := [at for at, script in enumerate(scripts) if done[at] < len(script.tokens)]:
        work = [_next(scripts[at], at, done[at], chunk) for at in going]
        rows = iter(decoding.step(work))
        for each in work:
            done[each.sequence] += len(each.tokens)
            if each.answers:
                found[each.sequence].append(next(rows))
            if done[each.sequence] == len(scripts[each.sequence].tokens):
                decoding.release(each.sequence)
    return [np.stack(rows) for rows in found]


def go_on(
    decoding: Decoding, scripts: Sequence[Script], counts: Sequence[int], ends: Collection[int]
) -> list[tuple[int, ...]]:
    """The best tokens behind each prompt, so many at most, or up to one that ends it; -1 ends one where all is NaN."""
    for at, script in enumerate(scripts):
        decoding.start(at, _given(script))
    found: list[tuple[int, ...]] = [() for _ in scripts]
    while going := [at for at in range(len(scripts)) if _goes_on(found[at], counts[at], ends)]:
        work = [Work(sequence=at, tokens=found[at][-1:] or scripts[at].prompt, answers=True) for at in going]
        for at, logits in zip(going, decoding.step(work), strict=True):
            found[at] += (-1 if np.isnan(logits).any() else int(logits.argmax()),)
    for at in range(len(scripts)):
        decoding.release(at)
    return found


def _goes_on(found: tuple[int, ...], count: int, ends: Collection[int]) -> bool:
    return len(found) < count and (not found or found[-1] not in (-1, *ends))


def _given(script: Script) -> Feeds:
    """What an encoder reads, or what is seen."""
    if script.given:
        return script.given
    return {"input_ids": np.array([script.source], np.int64)} if script.source else {}


def room_for(scripts: Sequence[Script]) -> Room:
    """What all of these take at once."""
    blocks = sum(-(-len(script.tokens) // BLOCK) for script in scripts)
    return Room(sequences=len(scripts), blocks=blocks + len(scripts), block_tokens=BLOCK)


class Stepping:
    """One sequence that goes on by a token with every call, behind so many others: what decides how fast it writes.

    Where the cache is full it begins again.
    """

    inputs = outputs = ()

    def __init__(self, engines: Mapping[str, Engine], spec: ModelSpec) -> None:
        self._most = engines["decoder"].plan.profile.holds
        self.past = past_of(self._most)
        room = Room(sequences=1, blocks=-(-self._most // BLOCK), block_tokens=BLOCK)
        self._decoding = open_decoding(engines, room)
        rng = np.random.default_rng(0)
        self._tokens = tuple(rng.integers(0, spec.vocab_size, self.past).tolist())
        self._given: Feeds = {}
        if "encoder" in engines:
            size = engines["encoder"].plan.profile.axes["source"].opt
            self._given = {"input_ids": rng.integers(0, spec.vocab_size, (1, size))}
        self._length = self._most

    def run(self, feeds: Feeds) -> Feeds:
        """One token more; `feeds` say nothing."""
        if self._length >= self._most:
            self._decoding.release(0)
            self._decoding.start(0, self._given)
            self._decoding.step([Work(sequence=0, tokens=self._tokens, answers=False)])
            self._length = self.past
        self._length += 1
        return {"logits": self._decoding.step([Work(sequence=0, tokens=self._tokens[:1], answers=True)])}

    def close(self) -> None:
        """Release the engines."""
        self._decoding.close()


def past_of(most: int) -> int:
    """How many tokens stand before the one that is timed: some hundreds, or half of what a decoder takes."""
    return max(1, min(TIMED_BEHIND, most // 2))


def _next(script: Script, at: int, done: int, chunk: int) -> Work:
    """The next tokens of a script: its prompt, or a chunk of it; then one by one."""
    size = len(script.prompt) - done
    size = min(size, chunk) if chunk and size > 0 else max(size, 1)
    tokens = script.tokens[done : done + size]
    return Work(sequence=at, tokens=tokens, answers=done + size >= len(script.prompt))


def _half(script: Script) -> int:
    return max(1, (len(script.prompt) + 1) // 2)


def _as_feeds(script: Script) -> Feeds:
    named = {"prompt": script.prompt, "follow": script.follow, "source": script.source}
    return {**script.given, **{name: np.array(ids, np.int64) for name, ids in named.items()}}


def _as_script(feeds: Feeds, name: str) -> Script:
    prompt, follow, source = (tuple(int(token) for token in feeds[key]) for key in _IDS)
    given = {key: array for key, array in feeds.items() if key not in _IDS}
    return Script(name=name, prompt=prompt, follow=follow, source=source, given=given)
