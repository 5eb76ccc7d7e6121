"""What the server says beside its lines of requests: warnings and errors, on stderr too, in the same form."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

logger = logging.getLogger(__name__)

MOST_WAITING = 10_000
"""Texts that wait for whoever reads the log; beyond, they are dropped and counted."""
ENDING_S = 1.0
"""How long what waits is still written when a server ends."""


class Lines(logging.Formatter):
    """A record as one line in the form of the log, whatever is in it."""

    def __init__(self, log_format: str) -> None:
        super().__init__()
        self._log_format = log_format

    def format(self, record: logging.LogRecord) -> str:
        """With the traceback, where there is one, as `error`."""
        said = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return line(self._log_format, said)


def line(log_format: str, said: Mapping[str, Any]) -> str:
    """What is said on one line: an object of JSON, or `key=value`."""
    if log_format == "json":
        return json.dumps(said)
    return " ".join(f"{key}={json.dumps(value).strip(chr(34))}" for key, value in said.items())


def log_as(log_format: str) -> None:
    """Have this process log so: from warnings on, unless it was told otherwise before."""
    if log_format == "none":
        return
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    logging.captureWarnings(capture=True)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(Lines(log_format))


class Unwaited(io.TextIOBase):
    """Text for a file descriptor whose reader nobody waits for: a thread writes it, or it is dropped and counted."""

    def __init__(self, descriptor: int, most: int = MOST_WAITING) -> None:
        self._descriptor = descriptor
        self._texts: queue.Queue[str | None] = queue.Queue(most)
        self._dropped = 0
        self._writer = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._writer.start()

    def write(self, text: str) -> int:
        """Leave the text to the thread."""
        try:
            if text:
                self._texts.put_nowait(text)
        except queue.Full:
            self._dropped += 1
        return len(text)

    def isatty(self) -> bool:
        """As the descriptor is."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def end(self, wait_s: float = ENDING_S) -> None:
        """Write what waits, as far as somebody reads it."""
        with contextlib.suppress(queue.Full):
            self._texts.put(None, timeout=wait_s)
            self._writer.join(wait_s)

    def _write_all(self) -> None:
        while (text := self._texts.get()) is not None:
            left = text.encode("utf-8", "backslashreplace")
            # Whoever has no room for a log, or nobody who reads it, has a server all the same.
            with contextlib.suppress(OSError):
                while left:
                    left = left[os.write(self._descriptor, left) :]
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                logger.warning(
                    "%d texts of this log were dropped: it was not read as fast as it grew", dropped
                )


@contextlib.contextmanager
def unwaited() -> Iterator[None]:
    """Nothing in this process waits for whoever reads its stderr."""
    try:
        stderr, descriptor = sys.stderr, sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        # It is no file, or there is none.
        yield
        return
    stderr.flush()
    patient = Unwaited(descriptor)
    _turn(stderr, patient)
    sys.stderr = patient
    try:
        yield
    finally:
        sys.stderr = stderr
        _turn(patient, stderr)
        patient.end()


def _turn(before: object, after: Any) -> None:
    """Whoever logs to the one logs to the other."""
    for each in logging.getLogger().handlers:
        if isinstance(each, logging.StreamHandler) and each.stream is before:
            each.setStream(after)
