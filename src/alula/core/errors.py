"""Every exception this package raises on purpose.

    AlulaError
    +-- InputError       the caller can fix it       (exit 2, HTTP 4xx)
    |   +-- ManifestError
    |   +-- ShapeError
    |   +-- MissingExtraError
    |   +-- TooLong       (HTTP 504)
    +-- Overloaded       the caller should retry     (HTTP 429 full, 503 draining)
    +-- EngineError      the backend failed          (exit 1, HTTP 500)
        +-- CompileError
        +-- RunError
            +-- DeviceLostError   (the process has to be started again)
            +-- OutOfMemoryError

`AssertionError` is left for bugs in this package.
"""

from __future__ import annotations


class AlulaError(Exception):
    """Root of the tree; never raised itself."""


class InputError(AlulaError):
    """The caller gave something that cannot be used as it is."""


class ShapeError(InputError):
    """A tensor does not match the spec of the input it was fed to."""


class MissingExtraError(InputError):
    """A part of this package was asked for whose libraries are not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs: pip install 'alula[{extra}]'")
        self.extra = extra


class TooLong(InputError):  # noqa: N818 - like Overloaded, a state
    """What was asked takes longer than the time that it has; nothing of it was begun."""


class ManifestError(InputError):
    """A JSON document of ours is malformed; `where` is the path inside it."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(f"{where}: {what}" if where else what)
        self.what = what
        self.where = where

    def under(self, key: str) -> ManifestError:
        """The same error, seen from one level further out."""
        joiner = "" if self.where.startswith("[") or not self.where else "."
        return ManifestError(self.what, f"{key}{joiner}{self.where}")


class Overloaded(AlulaError):  # noqa: N818 - it is a state, not a defect
    """The server takes no more for now; nothing was started for this request.

    `retry_s` is how long what waits will take, where that is known.
    """

    def __init__(self, what: str, *, draining: bool = False, retry_s: float | None = None) -> None:
        super().__init__(what)
        self.draining = draining
        self.retry_s = retry_s


class EngineError(AlulaError):
    """A backend failed in a way its caller cannot correct."""


class CompileError(EngineError):
    """A graph could not be compiled; the message names the node when known."""


class RunError(EngineError):
    """A compiled engine failed while running."""


class OutOfMemoryError(RunError):
    """The device has not the memory that was asked for; what was there before still works."""


class DeviceLostError(RunError):
    """An error that stays: nothing runs on this device in this process any more, so it has to be started again."""
