"""What the server says beside its lines of requests: warnings and errors, on stderr too, in the same form."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from typing import Any


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
