"""How long each layer of an engine takes, where its runtime can say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from alula.core.engine import Engine
from alula.core.tensor import Feeds


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTimes:
    """Mean milliseconds of one call: layer by layer in the order they run, and from end to end in the same calls.

    Layers of one name are told apart by their order. `kernels` are what ran for a layer, where the runtime says so.
    """

    layers: tuple[tuple[str, float], ...]
    call_ms: float
    runs: int
    kernels: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class TimesLayers(Protocol):
    """A backend that can time the layers of its engines."""

    def layer_times(self, engine: Engine, feeds: Feeds, *, runs: int, threads: int = 0) -> LayerTimes:
        """Run the engine `runs` times on these feeds, after a call that is not counted."""
        ...
