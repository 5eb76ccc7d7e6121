"""Load time and peak memory of one engine, alone in this process: `python -m alula.footprint DESCRIPTION`.

The description is one JSON argument: `bundle`, `checkpoint`, `shapes`, `threads`. The last line printed is the result.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from alula.bench import Shape, full_feeds, line_of, watch
from alula.bundles import Bundle
from alula.engines import backend
from alula.local import local_engine


def command(
    bundle: Path, shapes: Sequence[Shape], threads: int, checkpoint: Path | None = None
) -> tuple[str, ...]:
    """The child that measures a bundle's engine, or PyTorch on the bundle's checkpoint."""
    described = {
        "bundle": str(bundle),
        "shapes": [list(shape) for shape in shapes],
        "threads": threads,
        "checkpoint": None if checkpoint is None else str(checkpoint),
    }
    return (sys.executable, "-m", "alula.footprint", json.dumps(described))


def main(described: Mapping[str, Any]) -> str:
    """Open what is described, run it on every shape, and give the line to print."""
    bundle = Bundle.open(Path(described["bundle"]))
    feeds = [full_feeds(bundle.model, tuple(shape)) for shape in described["shapes"]]
    if described["checkpoint"] is not None:
        from alula.engines.torch import reference  # noqa: PLC0415 - a vendor, and only here

        root, threads = Path(described["checkpoint"]), described["threads"]
        return line_of(watch(lambda: reference(root, bundle.model, threads=threads), feeds))
    engine = local_engine(bundle)
    runtime = backend(engine.backend)
    return line_of(watch(lambda: runtime.open(engine, threads=described["threads"]), feeds))


if __name__ == "__main__":
    sys.stdout.write(main(json.loads(sys.argv[1])) + "\n")
