"""A bundle as it was when the server was started, so that no engine process opens another one in its place.

Imports little, since the first engine process is started before anything else is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from alula.core.errors import EngineError
from alula.core.identity import identity
from alula.core.words import MANIFEST, PIPELINE


class BundleReplaced(EngineError):  # noqa: N818 - what happened to the bundle
    """The folder holds another bundle than the one that was proved; only a new server may serve it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """A bundle's folder, and the identity of the bundle in it; empty where there is none that can be read.

    `alula verify` and `alula bench` may renew the evidence of a bundle that is served.
    """

    root: Path
    identity: str

    @classmethod
    def all_at(cls, roots: Iterable[Path]) -> tuple[Named, ...]:
        """The bundles in these folders, of which each is a bundle's, or a pipeline's with three in it."""
        return tuple(cls.at(each) for root in roots for each in bundles_in(root))

    @classmethod
    def at(cls, root: Path) -> Named:
        """The bundle as it lies there now."""
        return cls(root=root, identity=_identity(root))

    def refuse_if_replaced(self) -> None:
        """Refuse a folder that holds another bundle by now."""
        if _identity(self.root) != self.identity:
            raise BundleReplaced(
                f"{self.root}: the bundle was replaced or changed while it was served "
                f"({MANIFEST} is not the one the server read); restart the server"
            )


def by_name(said: str, roots: Iterable[Path]) -> str:
    """The same words with bundles called by the names of their folders: clients are told no path of this machine."""
    for root in roots:
        for path in (root.absolute(), root):
            if len(path.parts) > 1:
                said = said.replace(str(path), path.name)
    return said


def bundles_in(root: Path) -> tuple[Path, ...]:
    """The folder itself, or those of its parts where it is a pipeline's."""
    parts = tuple(root / part for part in PIPELINE)
    whole = (root / MANIFEST).is_file()
    return parts if not whole and all((part / MANIFEST).is_file() for part in parts) else (root,)


def _identity(root: Path) -> str:
    try:
        return identity(json.loads((root / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError, TypeError):
        return ""
