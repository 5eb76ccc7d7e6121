"""The HTTP front and the engine process behind it.

Importing this loads neither an HTTP library nor a runtime, since the engine process comes through here too.
"""

from __future__ import annotations

from collections.abc import Callable

from alula.serve.options import ServeOptions

__all__ = ["ServeOptions", "serve"]


def _silent(_: str) -> None:
    pass


def serve(options: ServeOptions, on_ready: Callable[[str], None] = _silent) -> None:
    """Serve until SIGTERM or SIGINT; `on_ready` is told the URL once requests are answered.

    Must be called in the main thread. Raises when the server cannot be started.
    """
    from alula.serve.lifetime import serve_until_told  # noqa: PLC0415 - not for the engine process

    serve_until_told(options, on_ready)
