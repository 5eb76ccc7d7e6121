"""From the folder of a bundle to a session that has shown that it answers rightly on this machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from alula.bundles import Bundle, Manifest, Stored
from alula.bundles.folder import read_json
from alula.core.engine import Session
from alula.core.errors import EngineError
from alula.core.model import Part
from alula.core.tensor import Array, Feeds
from alula.engines import backend
from alula.local import local_engine

PART = "encoder"

# Not the proof of the bundle, which its checks are, but of this machine: a wrong kernel or a damaged engine
# is far below, and the loosest precision a bundle may have is far above.
ALIKE = 0.98


def open_bundle(root: Path, threads: int) -> Session:
    """The session of the bundle's encoder; its files are proved whole by the front meanwhile."""
    manifest = Manifest.parse(read_json(root / "manifest.json"), root)
    bundle = Bundle(root=root, manifest=manifest, checks=(), timings=())
    engine = local_engine(bundle, PART)
    session = backend(engine.backend).open(engine, threads=threads)
    prove(session, bundle.stored, bundle.model.part(PART), root)
    return session


def prove(session: Session, stored: Stored, part: Part, root: Path) -> None:
    """Run the smallest stored sample and compare with the stored reference; also warms the engine up."""
    if not stored.feeds:
        raise EngineError(f"{root}: no stored sample to try the engine with; build the bundle again")
    size = [sum(array.size for array in feeds.values()) for feeds in stored.feeds]
    at = size.index(min(size))
    given = session.run(stored.feeds[at])
    for output in part.outputs:
        likeness = alike(
            _real(given[output.name], stored.feeds[at], output.shape),
            _real(stored.outputs[at][output.name], stored.feeds[at], output.shape),
        )
        if not likeness >= ALIKE:
            raise EngineError(
                f"{root}: on this machine {output.name!r} has cosine {likeness:.4f} to the stored reference, "
                f"expected at least {ALIKE}; build the bundle again here"
            )


def alike(given: Array, expected: Array) -> float:
    """Cosine between two arrays; NaN for NaN, 1 for two that are nought."""
    left, right = (np.asarray(array, dtype=np.float64).ravel() for array in (given, expected))
    scale = float(np.linalg.norm(left) * np.linalg.norm(right))
    if scale == 0.0:
        return float(np.array_equal(left, right))
    return float(left @ right) / scale


def _real(array: Array, feeds: Feeds, shape: tuple[int | str, ...]) -> Array:
    """The array without what it says about padding."""
    if shape[:2] == ("batch", "length") and "attention_mask" in feeds:
        array = array[np.asarray(feeds["attention_mask"], dtype=bool)]
    return array
