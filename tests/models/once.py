"""What takes long to make is made once, by whichever of the processes that test side by side comes first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def once(folders: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` makes at a path that it is given; one made by another process is taken as it is."""
    base = folders.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # whose own folders lie in that of the run
        base = base.parent
    shelf = base / "once"
    shelf.mkdir(exist_ok=True)
    to = shelf / name
    with (shelf / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not to.exists():
            begun = shelf / f"{name}.begun"
            make(begun)
            begun.rename(to)
    return to
