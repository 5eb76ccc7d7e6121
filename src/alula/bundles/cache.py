"""Built bundles by the digest of what they were built from, bounded in bytes, least recently used out first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alula.bundles import digest
from alula.bundles.folder import Bundle, put, refuse_foreign
from alula.core.errors import InputError

MAX_BYTES = 20 << 30


def cache_root() -> Path:
    """`$ALULA_CACHE`, or `alula` in the user's cache folder."""
    if given := os.environ.get("ALULA_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "alula"


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

    def fetch(self, key: str, to: Path) -> Bundle | None:
        """Put the bundle of this key at `to`, or None if there is none; a damaged entry is dropped."""
        entry = self.root / "bundles" / key
        if not entry.is_dir():
            return None
        refuse_foreign(to)
        scratch = to.absolute().with_name(f".{to.name}.{os.getpid()}.fetching")
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(entry, scratch, copy_function=_link)
            Bundle.open(scratch)
            os.utime(entry)
        except (InputError, OSError):
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.rmtree(entry, ignore_errors=True)
            return None
        put(scratch, to.absolute())
        return Bundle.read(to)

    def keep(self, key: str, bundle: Bundle) -> None:
        """Take a bundle in, then let the oldest go until the bound holds."""
        folder = self.root / "bundles"
        folder.mkdir(parents=True, exist_ok=True)
        scratch = folder / f".{key}.{os.getpid()}"
        try:
            shutil.copytree(bundle.root, scratch, copy_function=_link)
            put(scratch, folder / key)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self._shrink(folder)

    def _shrink(self, folder: Path) -> None:
        entries = sorted(
            (path for path in folder.iterdir() if path.is_dir()), key=lambda p: p.stat().st_mtime
        )
        sizes = {entry: _bytes(entry) for entry in entries}
        total = sum(sizes.values())
        for entry in entries:
            if total <= self.max_bytes:
                return
            shutil.rmtree(entry, ignore_errors=True)
            total -= sizes[entry]


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
    return target
