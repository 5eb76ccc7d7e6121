"""A user's prompts for a model that writes text: what its reference answers, and what a candidate loses of that.

The reference answers greedily, and a candidate says its next token behind every beginning of each answer. Where answers
are given or a metric of the user's judges, a candidate writes for itself: as far as it says the same as the reference,
what it would have written is known, and from there it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from alula import families
from alula.codecs import Message, decode, messages_of
from alula.core.check import Check, Reference
from alula.core.decoding import Decoding, Room
from alula.core.engine import Engine
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.data import Dataset, Example
from alula.engines import open_decoding
from alula.generate import Request
from alula.prompting import Prompts
from alula.rehearsed import Rehearsed, go_on, perform, room_for
from alula.scripts import (
    NOTHING,
    Teacher,
    ended,
    opened_teacher,
    rehearse,
    seen_of,
    side_by_side,
    sources_of,
    stacked,
)
from alula.verify import (
    Labelled,
    Likely,
    Prediction,
    Reply,
    Script,
    UserMetric,
    Verdict,
    beside,
    judge_labels,
    judge_written,
    likely,
)

WRITTEN = 64
"""Tokens of an answer at most; where answers are given, as many as the longest of them has and one more."""


SEEN_BYTES = 2 << 30
"""Of the images of all rows, as they are cut up: 400 pages of 640 x 640."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The rows of a data set as prompts of tokens, how many tokens may come behind each, and what may be lost."""

    spec: ModelSpec
    data: Dataset
    scripts: tuple[Script, ...]
    most: tuple[int, ...]
    decode: Callable[[Sequence[int]], str]
    budget: float
    metric: UserMetric | None = None

    @property
    def judges_answers(self) -> bool:
        """Whether what is written is judged, and not only what is said of each next token."""
        return self.data.labelled or self.metric is not None

    def read(self, tokens: Sequence[int]) -> str:
        """The text of an answer, up to the token that ends it."""
        ends = [at for at, token in enumerate(tokens) if token in self.spec.end_ids]
        return self.decode(tokens[: ends[0]] if ends else tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompted:
    """The same with a reference's answers, and what it says of each token of them."""

    asked: Asked
    reference: Reference
    scripts: tuple[Script, ...]
    likely: tuple[Likely, ...]

    @property
    def rows(self) -> str:
        """What checks on these rows know them by."""
        return self.asked.data.digest[:16]

    def judge(self, engines: Mapping[str, Engine], *, threads: int = 0) -> tuple[Check, ...]:
        """Hold the engines of all parts to the reference's answers; prompts of like length side by side, as served."""
        asked = self.asked
        replies: dict[Script, Reply] = {}
        written: dict[Script, Prediction] = {}
        groups = [list(group) for group in side_by_side(self.scripts)]
        told = dict(zip(self.scripts, self.likely, strict=True))
        with closing(open_decoding(engines, self._room(groups), threads=threads)) as decoding:
            for group in groups:
                for script, logits in zip(group, perform(decoding, group), strict=True):
                    replies[script] = Reply(likely=told[script], beside=beside(logits, told[script]))
                if asked.judges_answers:
                    written.update(self._written(decoding, {script: replies[script] for script in group}))
        given = [replies[script] for script in self.scripts]
        verdicts = judge_written(
            given, asked.spec, asked.budget, self.reference, labelled=asked.judges_answers
        )
        if asked.judges_answers:
            answers = [written[script] for script in self.scripts]
            verdicts = (*self.judge_answers(answers), *verdicts)
        return tuple(verdict.kept(self.rows) for verdict in verdicts)

    def judge_answers(self, written: Sequence[Prediction]) -> tuple[Verdict, ...]:
        """What these answers lose against the reference's, by the answers that are given, or by the user's metric."""
        asked = self.asked
        labelled = Labelled(
            texts=[example.texts for example in asked.data.examples],
            labels=[example.label for example in asked.data.examples],
            expected=self.answers,
            given=written,
        )
        return judge_labels(labelled, asked.spec, asked.budget, self.reference, asked.metric)

    @property
    def answers(self) -> list[str]:
        """What the reference wrote."""
        return [self.asked.read(script.follow) for script in self.scripts]

    def _room(self, groups: Sequence[Sequence[Script]]) -> Room:
        """What any of the groups takes, its answers as long as they may be."""
        most = dict(zip(self.scripts, self.asked.most, strict=True))
        rooms = [room_for([replace(each, follow=(0,) * most[each]) for each in group]) for group in groups]
        return Room(
            sequences=max(room.sequences for room in rooms),
            blocks=max(room.blocks for room in rooms),
            block_tokens=rooms[0].block_tokens,
        )

    def _written(
        self, decoding: Decoding, replies: Mapping[Script, Reply]
    ) -> Iterator[tuple[Script, Prediction]]:
        """What the engines write behind each prompt."""
        most = dict(zip(self.scripts, self.asked.most, strict=True))
        ends = self.asked.spec.end_ids
        begun = {script: _begun(script, reply) for script, reply in replies.items()}
        open_ones = {
            script: tokens
            for script, tokens in begun.items()
            if tokens != script.follow and len(tokens) < most[script] and tokens[-1] not in (*ends, NOTHING)
        }
        behind = [
            replace(script, prompt=(*script.prompt, *tokens), follow=())
            for script, tokens in open_ones.items()
        ]
        left = [most[script] - len(tokens) for script, tokens in open_ones.items()]
        for script, more in zip(open_ones, go_on(decoding, behind, left, ends), strict=True):
            begun[script] += more
        for script, tokens in begun.items():
            yield script, None if NOTHING in tokens else self.asked.read(tokens)


def asked_of(  # noqa: PLR0913 - six, which is as many as a function may have here
    data: Dataset,
    spec: ModelSpec,
    profile: Profile,
    tokenizer: Path,
    *,
    budget: float,
    metric: UserMetric | None = None,
    skip_bad: bool = False,
) -> Asked:
    """The rows of a data set, each as `alula run` and a server would ask it.

    A row that cannot be asked refuses the set, or with `skip_bad` is left out.
    """
    source = profile.axes.get("source")
    longest = profile.holds if source is None else min(profile.holds, source.max)
    prompts = Prompts.of(tokenizer, spec).within(longest)
    found = [_request_or_why(prompts, example) for example in data.examples]
    bad = {
        at: f"{data.path}:{data.examples[at].line}: {e}"
        for at, e in enumerate(found)
        if isinstance(e, InputError)
    }
    if bad and (not skip_bad or len(bad) == len(found)):
        first = next(iter(bad.values()))
        raise InputError(f"{first}; correct the row, or leave out such rows with --skip-bad-rows")
    requests = [each for each in found if isinstance(each, Request)]
    _refuse_vast(requests, data.path)
    data = data.without(bad) if bad else data
    answers = [len(prompts.codec.prompt(str(text))) for row in data.examples for text in _answers(row)]
    most = max(WRITTEN, max(answers, default=0) + 1)
    return Asked(
        spec=spec,
        data=data,
        scripts=tuple(
            Script(
                name=f"row {at}", prompt=request.prompt, source=request.source, follow=(), given=request.seen
            )
            for at, request in enumerate(requests)
        ),
        most=tuple(min(most, request.stopping.max_tokens) for request in requests),
        decode=prompts.codec.decode,
        budget=budget,
        metric=metric,
    )


def proofs(  # noqa: PLR0913 - six, which is as many as a function may have here
    reference: Reference,
    checkpoint: families.Checkpoint,
    spec: ModelSpec,
    profile: Profile,
    tokenizer: Path,
    *,
    asked: Asked | None,
) -> tuple[Rehearsed, Prompted | None]:
    """What a model that writes is held to: scripts that ship, and a user's prompts where there are any."""
    with opened_teacher(reference, checkpoint, spec, profile) as teacher:
        rehearsed = rehearse(teacher, reference, spec, profile, tokenizer)
        return rehearsed, None if asked is None else answered(asked, teacher, reference)


def answered(asked: Asked, teacher: Teacher, reference: Reference) -> Prompted:
    """Have the reference answer every prompt, and say what it finds likely behind each beginning of its answer."""
    whole: dict[Script, Script] = {}
    told: dict[Script, Likely] = {}
    for most in set(asked.most):
        # Those that may write less have no room for more, and all of them prompts of one length.
        alike = [script for script, own in zip(asked.scripts, asked.most, strict=True) if own == most]
        for group in side_by_side(alike, more=most):
            prompts = stacked([script.prompt for script in group], NOTHING, left=True)
            given, ends = seen_of(group), asked.spec.end_ids
            rows = teacher.write(prompts, most, sources_of(group), ends, given=given)
            for script, row in zip(group, rows.tolist(), strict=True):
                whole[script] = replace(script, follow=ended(row, asked.spec.end_ids), greedy=True)
    scripts = tuple(whole[script] for script in asked.scripts)
    for group in side_by_side(scripts):
        tokens = stacked([script.tokens for script in group])
        last = tokens.shape[1] - min(len(script.prompt) for script in group) + 1
        skipped = tokens.shape[1] - last
        read = teacher.read(tokens, sources_of(group), last, given=seen_of(group))
        for script, logits in zip(group, read, strict=True):
            begins = len(script.prompt) - 1 - skipped
            told[script] = likely(logits[begins : begins + len(script.follow)])
    found = Prompted(
        asked=asked, reference=reference, scripts=scripts, likely=tuple(told[script] for script in scripts)
    )
    if asked.judges_answers:
        _refuse_pointless(found)
    return found


def _refuse_pointless(found: Prompted) -> None:
    """Refuse answers that the reference has none of, and a metric that fails, before anything is compiled."""
    try:
        found.judge_answers(found.answers)
    except InputError as error:
        raise InputError(
            f"{error}; it wrote {found.answers[0][:60]!r} for the first row. What matters in an answer, a --metric of "
            "your own can look for"
        ) from error


def _request_or_why(prompts: Prompts, example: Example) -> Request | InputError:
    try:
        return _request(prompts, example)
    except InputError as error:
        return error


def _request(prompts: Prompts, example: Example) -> Request:
    """As a chat where the row is one, or where the checkpoint has a template and the row does not say otherwise."""
    if example.messages:
        return prompts.chat(messages_of(list(example.messages)), {})
    (text,) = example.texts
    if example.image is not None:
        page = prompts.patches(decode(example.image))
        return prompts.text(text, {}, [page]) if example.plain else prompts.look(text, [page])
    if example.plain or prompts.spec.reads_source or prompts.template is None:
        return prompts.text(text, {})
    return prompts.chat([Message(role="user", content=text)], {})


def _refuse_vast(requests: Sequence[Request], path: Path) -> None:
    """All images lie in memory while a build lasts."""
    size = sum(array.nbytes for request in requests for array in request.seen.values())
    if size > SEEN_BYTES:
        raise InputError(
            f"{path}: the images of {len(requests)} rows are {size} bytes as the model reads them, expected at most "
            f"{SEEN_BYTES}; give fewer rows or smaller images"
        )


def _answers(example: Example) -> tuple[object, ...]:
    return example.label if isinstance(example.label, tuple) else ()


def _begun(script: Script, reply: Reply) -> tuple[int, ...]:
    """What a candidate would have written, as far as that is known: up to its first token that is another."""
    best = tuple(reply.beside.best.tolist())
    other = [at for at, (own, said) in enumerate(zip(script.follow, best, strict=True)) if own != said]
    return best[: other[0] + 1] if other else script.follow
