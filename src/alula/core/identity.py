"""What makes two bundles the same to whoever serves them. Standard library only: the server reads this first of all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

EVIDENCE = ("checks.json", "timings.json")
"""Files that `verify` and `bench` renew; what is served stays the same."""


def identity(manifest: Mapping[str, Any]) -> str:
    """SHA-256 over a manifest's document, without what it says about the evidence."""
    files = [file for file in manifest.get("files", ()) if file.get("path") not in EVIDENCE]
    return hashlib.sha256(json.dumps({**manifest, "files": files}, sort_keys=True).encode()).hexdigest()
