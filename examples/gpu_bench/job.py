"""What the process that makes an engine is asked, and all that decides what it makes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alula
from alula.bundles.digest import of_file, of_sources
from gpu_bench.cases import CASES, Case, Tune, plan_of, tiny

_ROOMS = ("families", "graphs", "calibration")
"""The code that an engine's graph is made by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One engine to make, as JSON: of which case and checkpoint, at which precision, for which target, where to."""

    case: str
    dry: bool
    folder: str
    precision: str
    target: str
    tune: Tune
    level: int | None
    limit_s: float
    to: str

    @property
    def about(self) -> Case:
        """The case."""
        return tiny(CASES[self.case]) if self.dry else CASES[self.case]

    @property
    def asked(self) -> dict[str, Any]:
        """What the engine is made of and how; one that was made of and as the same is used again."""
        package = Path(alula.__file__).parent
        return {
            "checkpoint": [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in weights(self.folder)],
            "precision": self.precision,
            "target": self.target,
            "plan": str(plan_of(self.about, self.tune, level=self.level)),
            "code": [
                *(of_sources(package / room) for room in _ROOMS),
                of_file(package / "engines" / "tensorrt" / "compiling.py"),
            ],
        }


def weights(folder: str) -> list[Path]:
    """The files that a checkpoint's graph is written from."""
    endings = {".json", ".safetensors", ".bin"}
    return sorted(path for path in Path(folder).glob("*") if path.suffix in endings)
