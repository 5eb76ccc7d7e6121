"""What is said to an engine process of a model that it is to open or close, and what it says then."""

from __future__ import annotations

from dataclasses import dataclass

from alula.serve import wire
from alula.serve.named import Named
from alula.serve.trying import Timing
from alula.serve.wire import Kind, Message


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """`holds` tokens of one sequence, of a model that writes; `lanes` batches beside one another, and what some took.

    `bytes` is what the process grew by meanwhile: an estimate, since it may have done other things.
    """

    holds: int = 0
    lanes: int = 1
    timings: tuple[Timing, ...] = ()
    bytes: int = 0

    @classmethod
    def of(cls, answer: Message) -> Opened:
        """By its answer; raises what it failed with."""
        meta = unless_failed(answer).meta
        return cls(
            holds=meta.get("holds", 0),
            lanes=meta.get("lanes", 1),
            timings=tuple((rows, length, seconds) for rows, length, seconds in meta.get("timings", ())),
            bytes=meta.get("bytes", 0),
        )


def opening(number: int, bundle: Named) -> Message:
    """Have this bundle opened under a number."""
    meta = {"root": str(bundle.root.absolute()), "identity": bundle.identity}
    return Message(kind=Kind.OPEN, number=number, meta=meta)


def closing(number: int, model: int) -> Message:
    """Have a model closed."""
    return Message(kind=Kind.CLOSE, number=number, meta={"model": model})


def unless_failed(answer: Message) -> Message:
    """An answer, or the error that it is."""
    if answer.kind is Kind.FAILED:
        raise wire.error_of(answer)
    return answer
