"""What a runtime says about the layers that it runs, beside the engine: see `fusion` for what is read out of it."""

from __future__ import annotations

import json
from typing import Any

from alula.core.engine import LAYERS, Engine


def write_layers(engine: Engine, source: str, version: str, layers: Any) -> None:
    """Keep them as the runtime gives them; no engine needs the file to open."""
    document = {"source": source, "version": version, "layers": layers}
    (engine.path / LAYERS).write_text(json.dumps(document) + "\n", encoding="utf-8")
