"""How long work tells what it is doing; the command line decides how that looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Progress(Protocol):
    """Phases of one job, in order; a phase that raises is shown as failed by whoever draws it."""

    def phase(self, what: str) -> AbstractContextManager[None]:
        """Show `what` while the block runs."""
        ...


class Silent:
    """Shows nothing."""

    @contextmanager
    def phase(self, what: str) -> Iterator[None]:
        """Run the block."""
        yield
