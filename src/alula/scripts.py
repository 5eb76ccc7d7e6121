"""What a model that writes text is held to: scripts, and what the best reference at hand says of each next token.

References read whole rows at once, with no cache and no padding; candidates never do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from alula import families
from alula.bundles import PROCESSOR
from alula.codecs import TextCodec
from alula.core.check import Reference
from alula.core.decoding import NOTHING_GIVEN, Logits
from alula.core.engine import Session
from alula.core.model import ModelSpec
from alula.core.profile import PAST, Profile, Range
from alula.core.tensor import Array, Feeds
from alula.engines.seeing import looked
from alula.engines.sights import Sights
from alula.pictured import pictured
from alula.rehearsed import Rehearsed
from alula.running import running
from alula.verify import Script
from alula.verify.texts import SINGLES

if TYPE_CHECKING:
    from alula.engines.torch_writing import TorchWriter

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

    A source is what an encoder reads, `NOTHING` where it is none; `given` is what a single row is started with that
    has images.
    """

    def read(
        self, tokens: Ints, source: Ints | None = None, last: int = 0, given: Feeds = NOTHING_GIVEN
    ) -> Logits:
        """Logits behind every token, or behind so many `last` ones, [rows, length, vocabulary]."""
        ...

    def write(
        self,
        prompt: Ints,
        count: int,
        source: Ints | None = None,
        ends: Collection[int] = (),
        given: Feeds = NOTHING_GIVEN,
    ) -> Ints:
        """So many tokens behind each prompt, [rows, count], or fewer where each row has come to one that `ends` it.

        A shorter prompt has `NOTHING` in front.
        """
        ...

    def close(self) -> None:
        """Release the model."""
        ...


def rehearse(
    teacher: Teacher, reference: Reference, spec: ModelSpec, profile: Profile, tokenizer: Path
) -> Rehearsed:
    """Ask a reference for prompts of random ids and for the texts that ship, as long as the profile takes."""
    scripts = tuple(scripts_for(teacher, spec, profile, tokenizer))
    logits = tuple(_asked(teacher, scripts))
    return Rehearsed(reference=reference, spec=spec, scripts=scripts, logits=logits)


def scripts_for(teacher: Teacher, spec: ModelSpec, profile: Profile, tokenizer: Path) -> Iterator[Script]:
    """Random ids and real texts one token after another, and prompts that are gone on with as the reference does."""
    drawn, texts = list(_drawn(spec, profile)), list(_texts(spec, profile, tokenizer))
    seen = pictured(spec, tokenizer.with_name(PROCESSOR), profile.holds - 2 * ANSWER)
    most = profile.holds
    answer, text = (_length(size, spec, len(drawn) + len(texts) + len(seen), most) for size in (ANSWER, TEXT))
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
    for script in seen:
        yield from _answered(teacher, spec, [script], answer)


@contextmanager
def opened_teacher(
    reference: Reference, checkpoint: families.Checkpoint, spec: ModelSpec, profile: Profile
) -> Iterator[Teacher]:
    """Transformers on the checkpoint, or the graphs as they are written, in ONNX Runtime."""
    if reference == "pytorch":
        with closing(_pytorch(checkpoint, spec)) as teacher:
            yield teacher
        return
    with ExitStack() as opened:
        sessions = {
            part.name: opened.enter_context(
                running(families.write(checkpoint, spec, part.name), read_whole(profile).of(part.axes))
            )
            for part in spec.parts
        }
        yield OwnGraphs(spec, sessions)


def _pytorch(checkpoint: families.Checkpoint, spec: ModelSpec) -> Teacher:
    if not spec.sees:
        return torch_writer(checkpoint, spec)
    from alula.engines.torch_seeing import seer  # noqa: PLC0415 - seconds to import

    return seer(checkpoint.root, spec)


def torch_writer(checkpoint: families.Checkpoint, spec: ModelSpec, *, threads: int = 0) -> TorchWriter:
    """The checkpoint in transformers, in fp32; one that reads no images."""
    from alula.engines.torch_writing import Unpacked, writer  # noqa: PLC0415 - seconds to import

    unpacked = None
    if families.is_gguf(checkpoint):
        weights = {name: weight.read for name, weight in families.weights_of(checkpoint).items()}
        unpacked = Unpacked(config=checkpoint.config, weights=weights)
    return writer(checkpoint.root, spec, threads=threads, unpacked=unpacked)


def read_whole(profile: Profile) -> Profile:
    """As many rows as are read at once, each of them whole: a reference is bound by no engine's sizes."""
    most = profile.holds
    wide = {axis: Range(1, 1, most) for axis in ("length", "answers", "total")}
    wide |= {"batch": Range(1, 1, READ_AT_ONCE), PAST: Range(0, 0, most, least=0)}
    return Profile({**profile.axes, **wide})


class OwnGraphs:
    """The graphs of a model that writes text, read whole: no past but where it writes."""

    def __init__(self, spec: ModelSpec, sessions: Mapping[str, Session]) -> None:
        self._part, self._sessions = spec.part("decoder"), sessions

    def read(
        self, tokens: Ints, source: Ints | None = None, last: int = 0, given: Feeds = NOTHING_GIVEN
    ) -> Logits:
        """Logits behind every token, or so many last ones, in one call."""
        mask, sights = np.ones_like(tokens), self._looked(given)
        past, seen = self._nothing(len(tokens)), self._read_source(source)
        logits, _ = self._step(
            tokens, mask, past, {**seen, **self._told(sights, mask, tokens.shape[1])}, last
        )
        return logits

    def write(
        self,
        prompt: Ints,
        count: int,
        source: Ints | None = None,
        ends: Collection[int] = (),
        given: Feeds = NOTHING_GIVEN,
    ) -> Ints:
        """So many tokens behind each prompt, the best each time, or up to where every row has ended."""
        seen, past, sights = self._read_source(source), self._nothing(len(prompt)), self._looked(given)
        mask, found = (prompt != NOTHING).astype(np.int64), prompt[:, :0]
        tokens = prompt * mask
        while found.shape[1] < count and not np.isin(found, list(ends)).any(1).all():
            told = self._told(sights, mask, tokens.shape[1])
            logits, past = self._step(tokens, mask, past, {**seen, **told}, 1)
            tokens = logits.argmax(-1)
            mask = np.concatenate([mask, np.ones_like(tokens)], axis=1)
            found = np.concatenate([found, tokens], axis=1)
        return found

    def close(self) -> None:
        """Nothing: whoever opened the sessions closes them."""

    def _read_source(self, source: Ints | None) -> Feeds:
        if source is None:
            return {}
        mask = (source != NOTHING).astype(np.int64)
        states = self._sessions["encoder"].run({"input_ids": source * mask, "attention_mask": mask})
        return {"encoder_attention_mask": mask, **self._sessions["cross"].run(states)}

    def _looked(self, given: Feeds) -> Sights | None:
        """What the vision part makes of the images of the only row; None where nothing is seen at all."""
        sights = Sights.of(self._part.inputs)
        if sights is not None and given:
            sights.start(0, looked(self._sessions["vision"], given))
        return sights

    def _told(self, sights: Sights | None, mask: Ints, new: int) -> Feeds:
        """Where the new tokens are, and what is seen in their places: of one row with images, or of rows without."""
        if sights is None:
            return {"position_ids": _positions(mask, new)}
        begin = mask.shape[1] - new
        if len(mask) == 1 and mask.all():
            return sights.squared([0], [begin], new, 1)
        places = np.broadcast_to(_positions(mask, new), (sights.axes, len(mask), new))
        return {
            **sights.squared(range(1, len(mask) + 1), [begin] * len(mask), new, len(mask)),
            "position_ids": places,
        }

    def _step(self, tokens: Ints, mask: Ints, past: Feeds, seen: Feeds, last: int) -> tuple[Logits, Feeds]:
        new = tokens.shape[1]
        feeds: dict[str, Array] = {
            "input_ids": tokens,
            "attention_mask": mask,
            "answers": np.arange(new)[-last:],
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


def _positions(mask: Ints, new: int) -> Ints:
    """Places of the new tokens, [rows, new]: padding on the left is not counted."""
    places: Ints = np.maximum(mask.cumsum(1) - 1, 0)
    return places[:, -new:]


def _length(size: int, spec: ModelSpec, prompts: int, most: int) -> int:
    """So many tokens behind each prompt, or as many as all their logits can be held of."""
    share = LOGITS_BYTES / (4 * spec.vocab_size * prompts * (ANSWER + TEXT))
    return max(2, min(int(size * min(1.0, share)), most // 2))


def _longest(spec: ModelSpec, profile: Profile) -> int:
    """Tokens of a source, or of a prompt that leaves room for as many behind it."""
    return profile.axes["source"].max if spec.reads_source else profile.holds // 2


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
    given = seen_of(prompts)
    rows = teacher.write(
        stacked([script.prompt for script in prompts]), count, sources_of(prompts), given=given
    )
    for script, row in zip(prompts, rows.tolist(), strict=True):
        follow = ended(row, spec.end_ids) if spec.reads_source else tuple(row)
        yield replace(script, name=f"{script.name}, gone on with", follow=follow, greedy=True)


def ended(tokens: Sequence[int], ends: Collection[int]) -> tuple[int, ...]:
    """Tokens up to the first that ends an answer, which is one of them; all where none does."""
    found = next((at for at, token in enumerate(tokens, start=1) if token in ends), len(tokens))
    return tuple(tokens[:found])


def _asked(teacher: Teacher, scripts: Sequence[Script]) -> list[Logits]:
    """The logits of each script; those side by side are filled behind their ends, where nothing looks."""
    found: dict[Script, Logits] = {}
    for group in side_by_side(scripts):
        tokens = stacked([script.tokens for script in group])
        read = teacher.read(tokens, sources_of(group), given=seen_of(group))
        for script, logits in zip(group, read, strict=True):
            found[script] = logits[len(script.prompt) - 1 : len(script.tokens)].copy()
    return [found[script] for script in scripts]


def side_by_side(scripts: Sequence[Script], *, more: int = 0) -> Iterator[list[Script]]:
    """Short ones first, as many as are read at once, where each may grow by so many tokens `more`.

    One with images is by itself: transformers counts them over all rows of a batch, and so places them wrong.
    """
    yield from ([script] for script in scripts if script.given)
    group: list[Script] = []
    order = sorted(scripts, key=lambda each: len(each.tokens) + len(each.source))
    for script in (script for script in order if not script.given):
        size = max(len(script.tokens), len(script.source)) + more
        if group and (len(group) + 1) * size > READ_AT_ONCE:
            yield group
            group = []
        group.append(script)
    if group:
        yield group


def seen_of(group: Sequence[Script]) -> Feeds:
    """What the only script of a group is started with; nothing where there are no images."""
    return group[0].given


def sources_of(group: Sequence[Script]) -> Ints | None:
    """What an encoder reads, `NOTHING` behind the shorter ones."""
    return stacked([script.source for script in group], NOTHING) if group[0].source else None


def stacked(rows: Sequence[tuple[int, ...]], filled: int = 0, *, left: bool = False) -> Ints:
    """Rows as one array, the shorter ones filled behind their ends, or on the left."""
    longest = max(map(len, rows))
    made = np.full((len(rows), longest), filled, np.int64)
    for into, row in zip(made, rows, strict=True):
        into[longest - len(row) if left else 0 :][: len(row)] = row
    return made
