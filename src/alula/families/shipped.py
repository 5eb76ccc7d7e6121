"""Checkpoints that come with this package, by name: each a folder in the HuggingFace layout beside this file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from alula.core.errors import InputError
from alula.families.weights import SINGLE

FOLDER = Path(__file__).with_name("checkpoints")
_TAUGHT: Mapping[str, tuple[str, ...]] = {
    "hunyuan-ocr-small": ("document", "text", "spotting", "table", "fields"),
}
"""The tasks of pages that each was trained for."""

SHIPPED = tuple(_TAUGHT)
"""What `alula build` takes by name, where no folder is called that."""


def shipped(name: str, revision: str) -> Path | None:
    """The folder of a checkpoint that ships by this name, None for other names; refuses one without its weights."""
    if name not in SHIPPED:
        return None
    if revision != "main":
        raise InputError(f"{name} ships with alula and has no revision {revision!r}")
    folder = FOLDER / name
    if not (folder / SINGLE).is_file():
        raise InputError(
            f"{name} ships with alula, but {folder / SINGLE} is not there: install alula again, from a whole wheel or "
            "a whole copy of the repository"
        )
    return folder


def taught(folder: Path) -> tuple[str, ...]:
    """The tasks that a checkpoint was taught, where its folder is one of those that ship; nothing of others."""
    ships = folder.resolve().parent == FOLDER.resolve()
    return _TAUGHT.get(folder.name, ()) if ships else ()
