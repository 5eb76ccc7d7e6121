"""What generation decides, without any engine: tokens from logits, ends of answers, who runs in a step."""

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
    "Limits",
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
