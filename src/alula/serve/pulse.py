"""What canaries have told of an engine, and what is to be done about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Finding = Literal["well", "wrong", "failed", "away"]
"""Of one canary: it answered as it did at first, otherwise, with an error; or there was nobody to ask, or no room."""

Verdict = Literal["leave", "restart", "give up"]

FAILURES = 3
"""Errors in a row that no engine has which is well: a single one may be a moment without memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulse:
    """The last finding about one engine, errors in a row, and whether it was started again for a wrong answer."""

    last: Finding | None = None
    failures: int = 0
    cured: bool = False

    def after(self, finding: Finding) -> tuple[Pulse, Verdict]:
        """The pulse with one finding more, and what it asks for.

        An engine that answers wrongly is started again; if it goes on to, no start of this server's will help.
        """
        if finding == "away":
            return self, "leave"
        if finding == "well":
            return Pulse(last=finding), "leave"
        if finding == "wrong":
            return Pulse(last=finding, cured=True), "give up" if self.cured else "restart"
        if self.failures + 1 < FAILURES:
            return Pulse(last=finding, failures=self.failures + 1, cured=self.cured), "leave"
        return Pulse(last=finding, cured=self.cured), "restart"
