"""The process that opens files, so that one that crashes or swells takes no others with it: questions in, pages out."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

import numpy as np

from alula.core.errors import InputError
from alula.documents import Scan
from alula.ocr.loading import Files, Lost, Taking


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One page of a file, or, where `index` is None, how many it has."""

    source: str
    index: int | None = None


Answer: TypeAlias = Scan | int | Lost

_NO_PIXELS = np.empty((0, 0, 3), np.uint8)


def answer(files: Files, task: Task) -> Answer:
    """What a task comes to; a file that cannot be used is an answer too."""
    try:
        return files.count(task.source) if task.index is None else files.load(task.source, task.index)
    except (InputError, OSError) as error:
        message = str(error)
    except MemoryError:
        message = f"{task.source} needs more memory than one document may take"
    return Lost(source=task.source, index=task.index, message=message)


def send(connection: Connection, found: Answer) -> None:
    """An answer; pixels go by themselves, behind the rest, since pickling them takes three times as long."""
    if not isinstance(found, Scan):
        connection.send((found, None))
        return
    connection.send((replace(found, pixels=_NO_PIXELS), found.pixels.shape))
    rest = np.ascontiguousarray(found.pixels).data.cast("B")
    while rest:
        rest = rest[os.write(connection.fileno(), rest) :]


def receive(connection: Connection) -> Answer:
    """What `send` sent; EOFError where the other end is gone."""
    found: Answer
    found, shape = connection.recv()
    if not isinstance(found, Scan):
        return found
    pixels = np.empty(shape, np.uint8)
    rest = pixels.data.cast("B")
    while rest:
        count = os.readv(connection.fileno(), [rest])
        if not count:
            raise EOFError
        rest = rest[count:]
    return replace(found, pixels=pixels)


def main(argv: Sequence[str]) -> None:
    """Answer what comes in at a socket until its other end is closed."""
    # Whoever started this process ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Connection(int(argv[0])) as connection:
        taking: Taking = connection.recv()
        _bound(taking.memory_bytes)
        with closing(Files(taking)) as files, suppress(EOFError, BrokenPipeError, ConnectionResetError):
            while True:
                send(connection, answer(files, connection.recv()))


def _bound(memory_bytes: int) -> None:
    """Let the process take so much beside what it has."""
    if sys.platform != "linux":
        return
    import resource  # noqa: PLC0415 - not everywhere

    taken = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = taken + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))


if __name__ == "__main__":
    main(sys.argv[1:])
