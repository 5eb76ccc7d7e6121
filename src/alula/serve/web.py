"""The page at `/`: files of this package, sent as they are, which load nothing from anybody else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from hashlib import sha256
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""What a browser is to refuse on these pages: scripts and styles that stand in the page, and every other address.

Trusted types forbid that text ever becomes elements, so that nothing a model writes is more than text.
"""

STEM = "/page/"
PAGES = {"/": "index.html", "/docs": "docs.html"}


def routes() -> list[Route]:
    """The page, what it is made of, and the documentation. They say nothing of what is served, so all may have them."""
    return [Route(path, _sent(name)) for path, name in paths().items()]


@cache
def paths() -> dict[str, str]:
    """The file behind each path."""
    parts = {STEM + name: name for name in sorted(files()) if name not in PAGES.values()}
    return {**PAGES, **parts}


@cache
def files() -> dict[str, bytes]:
    """Every file by its name."""
    folder = resources.files("alula.serve").joinpath("static")
    return {file.name: file.read_bytes() for file in folder.iterdir() if _ending(file.name) in KINDS}


def _ending(name: str) -> str:
    return name.rpartition(".")[2]


def _sent(name: str) -> Callable[[Request], Awaitable[Response]]:
    """A file; whoever has it already is told so."""
    content = files()[name]
    headers = {
        "content-type": KINDS[_ending(name)],
        "etag": f'"{sha256(content).hexdigest()[:32]}"',
        "cache-control": "no-cache",
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
    }

    async def endpoint(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)

    return endpoint
