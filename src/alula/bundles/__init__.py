"""The folder that holds a built model: manifest, digests, cache."""

from __future__ import annotations

from alula.bundles.cache import Cache, shrink
from alula.bundles.folder import PROCESSOR, Bundle, Draft, Stored, document, finite, writing
from alula.bundles.manifest import FileRecord, Manifest, Rung, check_to_json, rung_to_json
from alula.bundles.rebuild import cpu_command, rebuild_command, settings_of

__all__ = [
    "PROCESSOR",
    "Bundle",
    "Cache",
    "Draft",
    "FileRecord",
    "Manifest",
    "Rung",
    "Stored",
    "check_to_json",
    "cpu_command",
    "document",
    "finite",
    "rebuild_command",
    "rung_to_json",
    "settings_of",
    "shrink",
    "writing",
]
