"""A bundle as it was when the server was started, so that no engine process opens another one in its place.

Imports little, since the first engine process is started before anything else is loaded.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from alula.core.errors import EngineError


class BundleReplaced(EngineError):  # noqa: N818 - what happened to the bundle
    """The folder holds another bundle than the one that was proved; only a new server may serve it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """A bundle's folder, and the SHA-256 of the manifest in it; empty where there is none."""

    root: Path
    manifest: str

    @classmethod
    def at(cls, root: Path) -> Named:
        """The bundle as it lies there now."""
        return cls(root=root, manifest=_manifest(root))

    def refuse_if_replaced(self) -> None:
        """Refuse a folder whose manifest is another one by now."""
        if _manifest(self.root) != self.manifest:
            raise BundleReplaced(
                f"{self.root}: the bundle was replaced or changed while it was served "
                "(manifest.json is not the one the server read); restart the server"
            )


def _manifest(root: Path) -> str:
    try:
        return hashlib.sha256((root / "manifest.json").read_bytes()).hexdigest()
    except OSError:
        return ""
