"""Answers from logits: tokens chosen, ends found, who runs in a step; and the loop that asks a session for them."""

from alula.generate.loop import Generator, Piece
from alula.generate.request import Request, Sampling, Stopping, parse_sampling, parse_stopping
from alula.generate.sampling import Chosen, Seen, choose, distribution, generator
from alula.generate.scheduler import (
    Chunk,
    Entry,
    Limits,
    State,
    Step,
    answered,
    cancel,
    entry,
    expired,
    plan,
    submit,
)
from alula.generate.stopping import Answer, Detokenizer, StopStrings

__all__ = [
    "Answer",
    "Chosen",
    "Chunk",
    "Detokenizer",
    "Entry",
    "Generator",
    "Limits",
    "Piece",
    "Request",
    "Sampling",
    "Seen",
    "State",
    "Step",
    "StopStrings",
    "Stopping",
    "answered",
    "cancel",
    "choose",
    "distribution",
    "entry",
    "expired",
    "generator",
    "parse_sampling",
    "parse_stopping",
    "plan",
    "submit",
]
