"""Who is let in, before anything of a request is read but its head: keys, limits of each key, priorities.

Over HTTP this stands around the application; over gRPC the same `Admission` is asked before a message is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from alula.core.errors import AlulaError
from alula.serve import callers, records, terms
from alula.serve.callers import Caller, Callers
from alula.serve.options import ServeOptions
from alula.serve.terms import Terms
from alula.serve.turnstile import Turnstile

HEALTH = frozenset(
    {
        "/health",
        "/health/live",
        "/health/ready",
        "/livez",
        "/readyz",
        "/v2/health/live",
        "/v2/health/ready",
    }
)
"""Open to everybody always: who watches a server has no key."""

SHOWN = frozenset({"/", "/metrics", "/docs", "/openapi.json"})
"""Open unless the server is told otherwise: figures, and pages that say nothing of the models."""

SHOWN_UNDER = ("/page/",)
"""The same of everything below these."""


class Admission:
    """Whether a request is taken, by its head alone."""

    def __init__(self, callers: Callers, *, everything: bool = False) -> None:
        self._callers = callers
        self._everything = everything
        self._turnstile = Turnstile()
        self._terms: dict[str, Terms] = {}

    @classmethod
    def of(cls, options: ServeOptions) -> Admission:
        """With the keys of a file and of the environment."""
        anybody = Caller(at_once=options.key_requests, per_minute=options.key_per_minute)
        file = Path(options.keys_file) if options.keys_file else None
        known = callers.read(file, options.api_keys, anybody)
        return cls(known, everything=options.private)

    def is_open(self, path: str) -> bool:
        """Whether a path is answered without a key."""
        if path in HEALTH or not self._callers.keyed:
            return True
        return not self._everything and (path in SHOWN or path.startswith(SHOWN_UNDER))

    def identified(self, headers: Mapping[str, str]) -> Caller:
        """Who asks; the priority in the head is that of the request from now on."""
        caller = self._callers.of(headers)
        records.current().caller = caller.name
        its, said = self._its_terms(caller), headers.get(terms.HEADER)
        terms.set_current(its.asking(None if said is None else terms.named(said, terms.HEADER)))
        return caller

    def _its_terms(self, caller: Caller) -> Terms:
        """Those of whoever has a key, made once."""
        if caller.name not in self._terms:
            admin = caller.admin or not self._callers.keyed
            self._terms[caller.name] = Terms(caller=caller.name, highest=caller.highest, admin=admin)
        return self._terms[caller.name]

    def passed(self, caller: Caller) -> AbstractContextManager[None]:
        """One request that is answered meanwhile, within the limits of its key."""
        return self._turnstile.passed(caller)


class Admitted:
    """An ASGI application that answers those who are let in; `refused` says how errors look on a path."""

    def __init__(
        self, app: ASGIApp, admission: Admission, refused: Callable[[Exception, str], Response]
    ) -> None:
        self._app = app
        self._admission = admission
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or say why not."""
        app = self._app
        passage: AbstractContextManager[None] = nullcontext()
        try:
            passage = self._let_in(scope)
        except AlulaError as error:
            app = self._refused(error, scope["path"])
        with passage:
            await app(scope, receive, send)

    def _let_in(self, scope: Scope) -> AbstractContextManager[None]:
        asks = scope["type"] == "http" and scope["method"] == "POST"
        if scope["type"] != "http" or (self._admission.is_open(scope["path"]) and not asks):
            return nullcontext()
        caller = self._admission.identified(_headers(scope))
        return self._admission.passed(caller) if asks else nullcontext()


def _headers(scope: Scope) -> dict[str, str]:
    """Headers by their names in small letters, those that are of use here."""
    return {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _OF_USE}


_OF_USE = frozenset(name.encode() for name in (*callers.HEADERS, terms.HEADER))
