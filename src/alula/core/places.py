"""Where this package keeps files of its own."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """`$ALULA_CACHE`, or `alula` in the user's cache folder."""
    if given := os.environ.get("ALULA_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "alula"
