"""How long work tells what it is doing; the command line decides how that looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeAlias

Note: TypeAlias = Callable[[str], None]
"""Takes what a long phase is at right now, such as steps done and time left; each replaces the one before."""


def quiet(note: str) -> None:
    """Shows no note."""


class Progress(Protocol):
    """Phases of one job, in order; a phase that raises is shown as failed by whoever draws it."""

    def phase(self, what: str) -> AbstractContextManager[Note]:
        """Show `what` while the block runs, and the notes that it makes."""
        ...


class Silent:
    """Shows nothing."""

    @contextmanager
    def phase(self, what: str) -> Iterator[Note]:
        """Run the block."""
        yield quiet
