"""What the compiling process is asked, as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Smallest, tuned and largest shape of one input."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One engine to compile; `profiles` has the shapes of every input, by name, once per profile."""

    target: str
    graph: str
    engine: str
    layers: str
    profiles: tuple[Mapping[str, Shapes], ...]
    workspace_bytes: int | None
    level: int | None
    portable: bool
    strip_weights: bool
    timing_cache: str | None

    def to_json(self) -> str:
        """The document."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Job:
        """Read a document that this package wrote."""
        raw = json.loads(text)
        profiles = tuple(
            {name: _shapes(shapes) for name, shapes in profile.items()} for profile in raw.pop("profiles")
        )
        return cls(**raw, profiles=profiles)


def _shapes(raw: Sequence[Sequence[int]]) -> Shapes:
    low, opt, high = (tuple(int(size) for size in shape) for shape in raw)
    return low, opt, high


def cache_file(root: Path, target: str) -> Path:
    """The timing cache of one device and version."""
    return root / "timing" / f"{target.replace(' ', '_').replace('/', '_')}.cache"
