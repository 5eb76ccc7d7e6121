"""Answers that are being written, on the wire: what is asked of one, and what each step gives of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from alula.core.tensor import Array
from alula.generate import Chosen, Piece, Request, Sampling, Stopping
from alula.serve.wire import Kind, Message

PIECES_PER_MESSAGE = 128
"""With twenty alternatives to every token, this many pieces are a tenth of what a message may hold."""

SEEN = "seen/"
"""Before the names of what a sequence with images is started with."""

CANCELLED = "the answer was cancelled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """How much a model that writes has to do; `preempted` counts since its process was started."""

    running: int = 0
    waiting: int = 0
    blocks: int = 0
    all_blocks: int = 0
    preempted: int = 0

    def __add__(self, other: Load) -> Load:
        """That of two processes together."""
        return Load(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(Load)}
        )


def asking(number: int, model: int, request: Request, within_s: float, later_s: float = 0.0) -> Message:
    """A request as a message; whoever reads it counts both times from then on, `later_s` for its place in the line."""
    sampling, stopping = asdict(request.sampling), asdict(request.stopping)
    bias = sampling.pop("logit_bias")
    arrays: dict[str, Array] = {
        "prompt": np.array(request.prompt, dtype=np.int64),
        "source": np.array(request.source, dtype=np.int64),
        "end_tokens": np.array(stopping.pop("end_tokens"), dtype=np.int64),
        "biased": np.array([token for token, _ in bias], dtype=np.int64),
        "bias": np.array([value for _, value in bias], dtype=np.float64),
        **{f"{SEEN}{name}": array for name, array in request.seen.items()},
    }
    meta = {
        "model": model,
        "sampling": sampling,
        "stopping": stopping,
        "within_s": within_s,
        "later_s": later_s,
    }
    return Message(kind=Kind.GENERATE, number=number, meta=meta, arrays=arrays)


def asked(message: Message) -> tuple[Request, float, float]:
    """The request of a message, the seconds it may take, and those by which its place in the line is moved."""
    arrays, meta = message.arrays, message.meta
    bias = zip(arrays["biased"].tolist(), arrays["bias"].tolist(), strict=True)
    stopping = {**meta["stopping"], "stop": tuple(meta["stopping"]["stop"])}
    request = Request(
        prompt=tuple(arrays["prompt"].tolist()),
        source=tuple(arrays["source"].tolist()),
        seen={name[len(SEEN) :]: array for name, array in arrays.items() if name.startswith(SEEN)},
        sampling=Sampling(**meta["sampling"], logit_bias=tuple(bias)),
        stopping=Stopping(**stopping, end_tokens=tuple(arrays["end_tokens"].tolist())),
    )
    return request, meta["within_s"], meta["later_s"]


def cancelling(number: int, model: int) -> Message:
    """Nobody waits for this answer any more; it is confirmed by a last piece, unless that was on its way."""
    return Message(kind=Kind.CANCEL, number=number, meta={"model": model})


def moved(model: int, pieces: Sequence[Piece], load: Load) -> list[Message]:
    """What a step gave, in one message unless there is very much, and how it left the model."""
    parts = [pieces[at : at + PIECES_PER_MESSAGE] for at in range(0, max(len(pieces), 1), PIECES_PER_MESSAGE)]
    return [
        Message(
            kind=Kind.PIECES,
            number=model,
            meta={"pieces": [_written(piece) for piece in part], "load": asdict(load)},
        )
        for part in parts
    ]


def pieces(message: Message) -> list[Piece]:
    """The pieces in a message."""
    return [_read(raw) for raw in message.meta["pieces"]]


def load(message: Message) -> Load:
    """How a step left the model."""
    return Load(**message.meta["load"])


def _written(piece: Piece) -> list[Any]:
    tokens = [[chosen.token, chosen.logprob, chosen.top] for chosen in piece.tokens]
    return [piece.id, piece.text, tokens, piece.ending, piece.stopped_by, piece.error, piece.waited_s]


def _read(raw: Sequence[Any]) -> Piece:
    id, text, tokens, ending, stopped_by, error, waited_s = raw
    return Piece(
        id=id,
        text=text,
        tokens=tuple(
            Chosen(token=token, logprob=logprob, top=tuple((other, its) for other, its in top))
            for token, logprob, top in tokens
        ),
        ending=ending,
        stopped_by=stopped_by,
        error=error,
        waited_s=waited_s,
    )
