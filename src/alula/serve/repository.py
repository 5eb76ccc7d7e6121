"""Bundles that may be served: those that were named at the start, and those in the operator's folder. By name alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from alula.core.words import MANIFEST
from alula.serve.errors import Refused
from alula.serve.named import Named


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """Folders by their names, of which no client ever says the path; closed without a `folder`."""

    given: Sequence[Named]
    folder: Path | None = None

    @property
    def folders(self) -> dict[str, Path]:
        """Every bundle that lies there now; one that was named at the start goes before another of its name."""
        found = {named.root.absolute().name: named.root for named in self.given}
        for root in sorted(self.folder.iterdir()) if self.folder and self.folder.is_dir() else ():
            if not root.name.startswith(".") and (root / MANIFEST).is_file():
                found.setdefault(root.name, root)
        return found

    def named(self, name: str) -> Named:
        """The bundle in the folder of this name, as it lies there now."""
        folders = self.folders
        if name not in folders:
            there = ", ".join(sorted(folders)) or "none"
            raise Refused(
                f"no bundle {name!r} in the repository; there are: {there}",
                status=404,
                code="model_not_found",
            )
        found = Named.at(folders[name])
        if not found.identity:
            raise Refused(f"bundle {name!r} has no {MANIFEST} that can be read", status=400)
        return found

    def refuse_unless_open(self) -> None:
        """Refuse changes of what is served where nobody has allowed them."""
        if self.folder is None:
            raise Refused(
                "models are not loaded and unloaded here; start the server with --repository FOLDER",
                status=403,
                code="repository_closed",
            )
