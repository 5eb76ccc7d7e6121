"""Load time and peak memory of one engine, alone in this process: `python -m alula.footprint DESCRIPTION`.

The description is one JSON argument: `bundle`, `checkpoint`, `shapes`, `threads`. The last line printed is the result.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from alula import families
from alula.bench import Shape, full_feeds, line_of, watch
from alula.bundles import Bundle
from alula.core.engine import Session
from alula.core.model import ModelSpec
from alula.core.tensor import Feeds
from alula.engines import backend
from alula.local import local_engine, local_engines
from alula.pace import EngineWriter, Pacing, TorchPace
from alula.scripts import torch_writer


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


def open_torch(checkpoint: families.Checkpoint, spec: ModelSpec, threads: int) -> Session:
    """PyTorch eager on a checkpoint, in fp32."""
    if spec.writes:
        return Pacing(TorchPace(torch_writer(checkpoint, spec, threads=threads)), spec)
    from alula.engines.torch import reference  # noqa: PLC0415 - a vendor, and only here

    return reference(checkpoint.root, spec, threads=threads)


def open_engine(bundle: Bundle, shapes: Sequence[Shape], threads: int) -> Session:
    """A bundle's engine, fit for these shapes."""
    if bundle.model.writes:
        writer = EngineWriter(local_engines(bundle), bundle.model, shapes, threads)
        return Pacing(writer, bundle.model)
    engine = local_engine(bundle)
    return backend(engine.backend).open(engine, threads=threads)


def main(described: Mapping[str, Any]) -> str:
    """Open what is described, run it on every shape, and give the line to print."""
    bundle = Bundle.open(Path(described["bundle"]))
    shapes, threads = [tuple(shape) for shape in described["shapes"]], described["threads"]
    feeds: list[Feeds] = [{"shape": np.array(shape)} for shape in shapes]
    if not bundle.model.writes:
        feeds = [full_feeds(bundle.model, shape) for shape in shapes]
    if described["checkpoint"] is None:
        local_engines(bundle)  # compiled here, if it must be, before loading is timed
        return line_of(watch(lambda: open_engine(bundle, shapes, threads), feeds))
    checkpoint = families.open_checkpoint(described["checkpoint"])
    return line_of(watch(lambda: open_torch(checkpoint, bundle.model, threads), feeds))


if __name__ == "__main__":
    sys.stdout.write(main(json.loads(sys.argv[1])) + "\n")
