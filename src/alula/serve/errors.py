"""Errors as HTTP: which status, and which body in which dialect."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import ceil
from typing import Any

from alula.core.errors import EngineError, InputError, Overloaded, TooLong
from alula.serve.exchange import EngineAway

log = logging.getLogger(__name__)

LONGEST_RETRY_S = 3_600
"""Nobody is told to wait longer than this: by then it may well be otherwise."""

REFUSED_KINDS = {401: "unauthorized", 403: "forbidden"}


class Refused(InputError):  # noqa: N818 - like Overloaded, what happened to a request
    """A request that is refused with a status of its own."""

    def __init__(self, what: str, *, status: int, code: str | None = None, param: str | None = None) -> None:
        super().__init__(what)
        self.status = status
        self.code = code
        self.param = param


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """What an error is over HTTP; `kind` is the word text-embeddings-inference uses, `code` OpenAI's."""

    status: int
    kind: str
    message: str
    code: str | None = None
    param: str | None = None
    retry_s: float | None = None

    def body(self, *, openai: bool) -> dict[str, Any]:
        """The JSON to send."""
        if not openai:
            return {"error": self.message, "error_type": self.kind}
        ours = self.kind == "validation" or self.status in REFUSED_KINDS
        kind = "invalid_request_error" if ours else f"{self.kind}_error"
        return {"error": {"message": self.message, "type": kind, "code": self.code, "param": self.param}}

    @property
    def headers(self) -> dict[str, str]:
        """Whether and when to try again, and with what; whose body did not come is listened to no longer."""
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        if self.status == 408:
            return {"connection": "close"}
        return {"retry-after": self.retry_after} if self.status in {429, 503} else {}

    @property
    def retry_after(self) -> str:
        """Whole seconds until there may be room: how long what waits takes, where that was measured."""
        return str(min(max(1, ceil(self.retry_s or 1)), LONGEST_RETRY_S))


def failure_of(error: Exception) -> Failure:
    """The HTTP side of an error; one that nobody foresaw is logged and says nothing of our insides."""
    message = str(error)
    if isinstance(error, InputError):
        return _refusal(error)
    if isinstance(error, Overloaded):
        if error.draining:
            return Failure(status=503, kind="unhealthy", message=message, code="unavailable")
        return Failure(
            status=429, kind="overloaded", message=message, code="overloaded", retry_s=error.retry_s
        )
    if isinstance(error, EngineAway):
        return Failure(status=503, kind="unhealthy", message=message, code="unavailable")
    if isinstance(error, EngineError):
        log.error("engine failed: %s", message)
        return Failure(status=500, kind="backend", message=message, code="engine_error")
    log.error("request failed", exc_info=error)
    return Failure(status=500, kind="backend", message="internal error; the server's log has more")


def _refusal(error: InputError) -> Failure:
    if isinstance(error, TooLong):
        return Failure(status=504, kind="timeout", message=str(error), code="timeout")
    if not isinstance(error, Refused):
        return Failure(status=400, kind="validation", message=str(error))
    kind = "timeout" if error.status >= 500 else REFUSED_KINDS.get(error.status, "validation")
    return Failure(status=error.status, kind=kind, message=str(error), code=error.code, param=error.param)
