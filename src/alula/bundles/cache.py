"""Built bundles by the digest of what they were built from, bounded in bytes, least recently used out first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alula.bundles import digest
from alula.bundles.folder import Bundle, link, refuse_foreign
from alula.bundles.replace import alone, beside, put
from alula.core.errors import InputError

MAX_BYTES = 20 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """A folder of bundles; entries are whole or absent.

    Files are shared with the bundles by hard links where the file system allows, so the cache costs no space of its
    own. Nothing here writes into a file of a bundle; if somebody else does, the entry is damaged, noticed and dropped.
    """

    root: Path
    max_bytes: int = MAX_BYTES

    def key(self, inputs: Mapping[str, Any]) -> str:
        """The entry's name: everything that decides the result must be in `inputs`."""
        return digest.of_value(inputs)

    def look(self, key: str) -> Bundle | None:
        """The entry of this key as it lies there, not proved whole; None if there is none that can be read."""
        try:
            return Bundle.read(self.root / "bundles" / key)
        except InputError:
            return None

    def fetch(self, key: str, to: Path) -> Bundle | None:
        """Put the bundle of this key at `to`, or None if there is none; a damaged entry is dropped."""
        entry = self.root / "bundles" / key
        if not entry.is_dir():
            return None
        real = Path(os.path.realpath(to))
        refuse_foreign(real)
        with alone(real):
            scratch = beside(real, "fetching")
            try:
                with alone(entry.parent, waits=True):
                    if not entry.is_dir():
                        return None
                    shutil.copytree(entry, scratch, copy_function=link)
                    os.utime(entry)
                if not _whole(scratch):
                    with alone(entry.parent, waits=True):
                        shutil.rmtree(entry, ignore_errors=True)
                    return None
                put(scratch, real)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return Bundle.read(to)

    def keep(self, key: str, root: Path) -> None:
        """Take the bundle at `root` in, then let the oldest go until the bound holds."""
        folder = self.root / "bundles"
        folder.mkdir(parents=True, exist_ok=True)
        scratch = beside(folder / key, "keeping")
        try:
            shutil.copytree(root, scratch, copy_function=link)
            with alone(folder, waits=True):
                put(scratch, folder / key)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        shrink(folder, self.max_bytes)


def shrink(folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Let the least recently used entries of a folder go until the rest fits; what is being written is left alone."""
    with alone(folder, waits=True):
        _shrink(folder, max_bytes)


def _shrink(folder: Path, max_bytes: int) -> None:
    entries = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    entries.sort(key=lambda path: path.stat().st_mtime)
    sizes = {entry: _bytes(entry) for entry in entries}
    total = sum(sizes.values())
    for entry in entries:
        if total <= max_bytes:
            return
        shutil.rmtree(entry, ignore_errors=True)
        total -= sizes[entry]


def _whole(root: Path) -> bool:
    try:
        Bundle.open(root)
    except InputError:
        return False
    return True


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
