"""What becomes known of a request while it is answered: for the log, for traces. Never what it says.

Whoever learns something adds it to the record of the request at hand, `current()`, which follows it into every task
that is started for it, and not into threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["ok", "refused", "overloaded", "timeout", "left", "failed"]
Phase = Literal["queue", "compute", "first token"]

DIGEST_DIGITS = 16
MOST_SPANS = 64
"""Of one request; what comes after is counted in its times all the same."""

LEFT = 499
"""The status of a request whose client did not wait for its answer, as nginx has it."""

OUTCOMES: Mapping[int, Outcome] = {
    408: "timeout",
    429: "overloaded",
    LEFT: "left",
    503: "overloaded",
    504: "timeout",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Part of a request's life, in seconds of the monotonic clock."""

    phase: Phase
    start: float
    end: float


@dataclass(kw_only=True, slots=True)
class Record:
    """One request. Times are seconds of the monotonic clock, `time` is that of the day at `began`.

    Bodies are digested where somebody reads of it (`digests`).
    `items` are texts, images, rows or answers that were asked for, `rows` texts that wait together for the engine, of
    which `done` have run, `tokens` those read, `written` those written,
    `pixels` of images as they came, `input` begins the SHA-256 of the body, `degraded` says by what it was answered
    instead and `because` why, `caller` is the name of its key. `failed` is what a stream ended with whose status was
    out already. `trace`
    are the headers by which a caller says whose part the request is, `trace_id` and `span_id` its own name there.
    `then` is what is to be done once the request is answered.
    """

    id: str
    method: str
    route: str
    path: str
    client: str
    time: float
    began: float
    trace: tuple[tuple[str, str], ...] = ()
    trace_id: str = ""
    span_id: str = ""
    digests: bool = False
    status: int = LEFT
    ended: float = 0.0
    model: str = ""
    items: int = 0
    rows: int = 0
    done: int = 0
    tokens: int = 0
    written: int = 0
    pixels: int = 0
    body_bytes: int = 0
    input: str = ""
    first_s: float | None = None
    queue_s: float | None = None
    compute_s: float | None = None
    degraded: str = ""
    because: str = ""
    caller: str = ""
    failed: int | None = None
    spans: list[Span] = field(default_factory=list)
    then: list[Callable[[], None]] = field(default_factory=list)

    def body(self, content: bytes) -> None:
        """What it came with."""
        self.body_bytes += len(content)
        self.holds(content)

    def holds(self, *contents: bytes) -> None:
        """What is to be told from other inputs, where the body itself is never the same twice, as forms are not."""
        if self.digests:
            digest = hashlib.sha256()
            for content in contents:
                digest.update(content)
            self.input = digest.hexdigest()[:DIGEST_DIGITS]

    def asked(self, model: str, items: int) -> None:
        """Which model is to do how many things; one that is asked again for the same request has more to do.

        What stands in for the model that was asked for does not change its name.
        """
        self.model = self.model if self.degraded else model
        self.items += items

    def ran(self, since: float, started: float, ended: float) -> None:
        """Something of it waited since then, and ran in a batch; several of one batch are told one by one."""
        self.done += 1
        if self.queue_s is None:
            self.queue_s = started - since
            self._span("queue", since, started)
        if not self._ran_at(started):
            self.compute_s = (self.compute_s or 0.0) + ended - started
            self._span("compute", started, ended)

    def wrote(self, since: float, now: float, tokens: int, waited_s: float | None = None) -> None:
        """Tokens of an answer came that was asked for `since`; with the first ones comes how long it waited in line."""
        self.written += tokens
        if self.first_s is None:
            self.first_s = now - self.began
            if waited_s is not None:
                self.queue_s = waited_s
                self._span("queue", since, since + waited_s)
            self._span("first token", since + (waited_s or 0.0), now)
        self.compute_s = now - since - (self.queue_s or 0.0)

    @property
    def ending(self) -> int:
        """The status, or, of a stream that was not ended well, the one which that would have had at first."""
        return self.status if self.failed is None else self.failed

    @property
    def outcome(self) -> Outcome:
        """What came of it, in a word."""
        status = self.ending
        return OUTCOMES.get(status, "failed" if status >= 500 else "refused" if status >= 400 else "ok")

    @property
    def seconds(self) -> float:
        """From the request's head to the end of its answer."""
        return self.ended - self.began

    def _ran_at(self, started: float) -> bool:
        return any(span.phase == "compute" and span.start == started for span in reversed(self.spans))

    def _span(self, phase: Phase, start: float, end: float) -> None:
        if len(self.spans) < MOST_SPANS:
            self.spans.append(Span(phase=phase, start=start, end=end))


_current: ContextVar[Record | None] = ContextVar("record", default=None)


def at_hand() -> Record | None:
    """The record of the request at hand, if there is one."""
    return _current.get()


def current() -> Record:
    """The record of the request at hand; outside of one, one that nobody reads."""
    return _current.get() or Record(id="", method="", route="", path="", client="", time=0.0, began=0.0)


class Recording:
    """Makes a record that of the request at hand, as long as its block lasts."""

    __slots__ = ("_record", "_token")

    def __init__(self, record: Record) -> None:
        self._record = record

    def __enter__(self) -> Record:
        self._token = _current.set(self._record)
        return self._record

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
