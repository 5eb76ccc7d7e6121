"""How long an engine takes for a few shapes, before anybody has asked it anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from alula.core.engine import Engine, Session
from alula.core.errors import ShapeError
from alula.core.tensor import Feeds

Timing: TypeAlias = tuple[int, int, float]
"""Rows, length, seconds."""

SHAPES = ((1, 16), (4, 16), (2, 64), (1, 128))
BUDGET_S = 0.1
"""Where an engine is slow, fewer shapes are tried: the server is to be there soon."""
_SHAPE = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")
AXES = {"batch", "length"}


def timings(session: Session, clock: Callable[[], float]) -> list[Timing]:
    """The better of two calls of a few shapes; of a session that takes no rows of tokens, nothing."""
    if {dim for spec in session.inputs for dim in spec.shape if isinstance(dim, str)} != AXES:
        return []
    found: list[Timing] = []
    began = clock()
    for rows, length in SHAPES:
        sizes = {"batch": rows, "length": length}
        feeds = {spec.name: np.ones(spec.sized(sizes), spec.dtype) for spec in session.inputs}
        try:
            found.append((rows, length, min(_seconds(session, feeds, clock) for _ in range(2))))
        except ShapeError:
            continue  # not one of those that it was built for
        if clock() - began > BUDGET_S:
            break
    return found


def bundled(rows: Iterable[Mapping[str, Any]], engine: Engine) -> list[Timing]:
    """What the bundle says its engine takes, of rows of tokens: as `bench` and the build measured it."""
    found: list[Timing] = []
    for row in rows:
        shape = _SHAPE.fullmatch(str(row.get("shape")))
        told = row.get("engine"), row.get("precision")
        if (
            shape
            and told == (engine.backend, engine.graph.precision)
            and isinstance(row.get("p50_ms"), float)
        ):
            found.append((int(shape[1]), int(shape[2]), row["p50_ms"] / 1e3))
    return found


def _seconds(session: Session, feeds: Feeds, clock: Callable[[], float]) -> float:
    began = clock()
    session.run(feeds)
    return clock() - began
