"""A served model that reads texts and answers each in one call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from alula.batching import Answered, Batcher, BatchPolicy, Ran, arranged
from alula.bundles import Bundle
from alula.codecs import Row, TextCodec, fit, padded_lengths, row_outputs, within
from alula.core.errors import InputError, ShapeError
from alula.core.model import ModelSpec
from alula.core.packing import is_packed
from alula.core.profile import Profile, pick
from alula.core.tensor import Feeds
from alula.core.words import TENSORS, TOKENS
from alula.serve import deadlines, terms
from alula.serve.aside import tokenized
from alula.serve.errors import Refused
from alula.serve.opened import Opened
from alula.serve.opening import PART
from alula.serve.options import ServeOptions
from alula.serve.outcome import Outcome
from alula.serve.records import current
from alula.serve.trying import Timing, bundled
from alula.serve.weights import row_bytes

T = TypeVar("T")
R = TypeVar("R")
Run: TypeAlias = Callable[[Feeds], Awaitable[Outcome]]


class RunSome(Protocol):
    """Runs a batch; of the outputs only the `wanted` ones come back, all where it is None."""

    def __call__(self, feeds: Feeds, wanted: Sequence[str] | None = None) -> Awaitable[Outcome]:
        """What the engine says."""
        ...


Observe: TypeAlias = Callable[[str, Ran], None]

TOKENS_A_CHARACTER = 0.25
"""What is expected of texts before any was read; then what they have, of which each request makes up `LEARNED`."""

LEARNED = 0.05

SIZED = ("text-detection", TENSORS)
"""Tasks whose rows differ in more than one axis, so that only their own arrays tell what they weigh."""


class Batched(ABC, Generic[T]):
    """A bundle being served whose engine answers batches: the batcher in front of it, and who may go there."""

    def __init__(
        self, bundle: Bundle, spec: ModelSpec, run: Run, options: ServeOptions, observe: Observe
    ) -> None:
        self.bundle = bundle
        self.spec = spec
        engine = bundle.engine(PART)
        self._profile = engine.plan.profile
        self.policy = policy(spec, self._profile, options)
        if is_packed(engine.inputs):
            self.policy = replace(self.policy, lengths=(), packed=True)
        self.batcher: Batcher[T, Feeds] = Batcher(
            self._call, self.policy, observe=lambda ran: observe(self.name, in_profile(ran, self._profile))
        )
        self.learn(bundled(bundle.timings, engine))
        self._run = run
        self._max_client_batch = options.max_client_batch

    @property
    def name(self) -> str:
        """What requests call the model."""
        return self.spec.name

    @property
    def waiting(self) -> int:
        """What waits for a batch."""
        return self.batcher.waiting

    @property
    def wait_s(self) -> float | None:
        """How long what waits takes, by what was measured; None where nothing was."""
        return self.batcher.wait_s()

    @property
    def limits(self) -> Mapping[str, Any]:
        """What one call of the engine holds."""
        return {"max_batch_rows": self.policy.max_rows}

    def learn(self, timings: Iterable[Timing]) -> None:
        """Take note of what batches cost, before the first one runs."""
        costs = self.batcher.costs
        for rows, length, seconds in timings:
            formed = arranged(self.policy, costs).formed([length] * rows)
            costs.learn(*formed.shape, seconds, warm=True)

    def prepare(self, opened: Opened) -> None:
        """Take note of what its engine process says of it."""
        self.batcher.lanes = opened.lanes
        self.learn(opened.timings)

    def at_work(self) -> AbstractAsyncContextManager[object]:
        """Requests are answered as long as this lasts, and those that were admitted at its end."""
        return self.batcher

    def _admit(self, count: int, what: str) -> None:
        """Refuse a request before any work: for good if it brings too many, for now if there is no room."""
        with self._expecting(count, what):
            pass

    def _expecting(self, count: int, what: str, tokens: int = 0) -> AbstractContextManager[object]:
        """As `_admit`, and until the end of this others are refused as though what is expected of it waited already."""
        if count > self._max_client_batch:
            raise Refused(f"{count} {what} in one request; the limit is {self._max_client_batch}", status=413)
        current().asked(self.name, count)
        return self.batcher.expecting(count, tokens, share=terms.current().share)

    async def _queued(self, rows: Sequence[T], lengths: Sequence[int]) -> list[Feeds]:
        """The outputs of the rows of a request, which wait as urgently as it is."""
        return await self.batcher.submit(
            rows, lengths, later_s=terms.current().later_s, deadline=deadlines.until(), told=current().ran
        )

    async def straight(self, feeds: Feeds) -> Feeds:
        """The outputs of a batch that is made already, past the queue; whoever asks bounds how many there are."""
        return (await self._run(feeds)).outputs

    @abstractmethod
    async def _call(self, rows: list[T]) -> Answered[Feeds]:
        """The outputs of each row of a batch."""


class Service(Batched[Row]):
    """A bundle being served that reads texts: its codec, and the batcher in front of its engine."""

    def __init__(self, bundle: Bundle, run: RunSome, options: ServeOptions, observe: Observe) -> None:
        spec = within(bundle.model, bundle.engine(PART).plan.profile)
        self.codec = TextCodec.open(bundle.tokenizer, spec)
        self._tokens_a_character = TOKENS_A_CHARACTER
        super().__init__(bundle, spec, run, options, observe)
        self._run_some = run

    @property
    def limits(self) -> Mapping[str, Any]:
        """What one call of the engine holds, and of a sentence encoder whether it gives the vectors of tokens, too."""
        tokens = {"token_embeddings": gives_tokens(self.spec)} if self.spec.task == "embeddings" else {}
        return {**super().limits, **tokens}

    async def answer(
        self, count: int, characters: int, encode: Callable[[], Sequence[Row]]
    ) -> tuple[Sequence[Row], list[Feeds]]:
        """The rows of one request and their outputs; refused before any work if they are too many, or too long."""
        expected = min(round(characters * self._tokens_a_character), count * self.spec.max_length)
        rows = await self.read(count, characters, encode, expected)
        lengths = [max(len(row.ids), 1) for row in rows]
        current().rows += len(rows)
        current().tokens += sum(lengths)
        if characters:
            found = min(sum(lengths) / characters, 1.0)
            self._tokens_a_character += LEARNED * (found - self._tokens_a_character)
        return rows, await self._queued(rows, lengths)

    async def read(self, count: int, characters: int, encode: Callable[[], R], tokens: int = 0) -> R:
        """What the tokenizer makes of so many texts; refused before any work if they are too many.

        `tokens` are those that will wait for a batch, as far as the number of characters tells.
        """
        if count < 1:
            raise InputError("the list of inputs is empty; expected at least one")
        with self._expecting(count, "inputs", tokens):
            return await tokenized(characters, encode)

    async def _call(self, rows: list[Row]) -> Answered[Feeds]:
        feeds = fit(rows, self.spec, self._profile)
        if not gives_tokens(self.spec):
            ran = await self._run_some(feeds)
            return ran.answered(row_outputs(ran.outputs, rows, self.spec))
        # States of tokens are a hundred times what a vector is, and mostly nobody asks for them.
        names = [output.name for output in self.spec.parts[0].outputs]
        some = any(row.unpooled for row in rows)
        ran = await self._run_some(feeds, [name for name in names if some or name != TOKENS])
        return ran.answered(
            [
                {name: array for name, array in outputs.items() if row.unpooled or name != TOKENS}
                for row, outputs in zip(rows, row_outputs(ran.outputs, rows, self.spec), strict=True)
            ]
        )


def gives_tokens(spec: ModelSpec) -> bool:
    """Whether a sentence encoder was built to give the states of its tokens, too."""
    return any(output.name == TOKENS for output in spec.parts[0].outputs)


def in_profile(ran: Ran, profile: Profile) -> Ran:
    """The same, with the profile that it ran in, where an engine for rows of tokens has several."""
    if not profile.tuned or set(profile.axes) != {"batch", "length"}:
        return ran
    try:
        sizes = profile.padded({"batch": ran.rows, "length": ran.longest})
    except ShapeError:  # the rows fit by less than what lengths are padded to
        return ran
    return replace(ran, profile=str(profile.tuned[pick(profile.tuned, sizes)]))


def policy(spec: ModelSpec, profile: Profile, options: ServeOptions) -> BatchPolicy:
    """The limits of the engine and of the server together; a batch always holds one row of full length.

    Texts differ in length and lines in width; images of one size are all alike.
    """
    axis, longest = "length", spec.max_length
    if not spec.reads_text:
        axis, longest = "width", profile.axes["width"].max if "width" in profile.axes else 1
    row, cell = row_bytes(spec.parts[0], profile, axis)
    if spec.task in SIZED:
        row = cell = 0  # seen of each as it comes
    return BatchPolicy(
        max_rows=profile.axes["batch"].max if "batch" in profile.axes else 1,
        max_cells=max(options.max_batch_tokens, longest),
        max_bytes=options.max_batch_bytes,
        row_bytes=row,
        cell_bytes=cell,
        max_waiting_rows=max(options.max_waiting_rows, options.max_client_batch),
        max_waiting_tokens=max(options.max_waiting_tokens, options.max_client_batch * longest),
        steps=tuple(
            (part.axes[axis].max if axis in part.axes else 1, part.axes["batch"].max)
            for part in profile.tuned
            if "batch" in part.axes
        ),
        lengths=padded_lengths(longest) if spec.reads_text else (),
    )
