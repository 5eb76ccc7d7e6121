"""What the server says beside its lines of requests: warnings and errors, on stderr too, in the same form."""

from __future__ import annotations

import json
import logging
import sys


class Lines(logging.Formatter):
    """A record as one line of JSON, whatever is in it."""

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
        return json.dumps(said)


def log_as(log_format: str) -> None:
    """Have this process log so: from warnings on, unless it was told otherwise before."""
    if log_format == "json":
        logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
        for handler in logging.getLogger().handlers:
            handler.setFormatter(Lines())
