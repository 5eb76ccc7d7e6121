"""Small graphs of every family in each precision, as files: what writes them needs PyTorch, what runs them does not.

python tests/gpu/family_graphs.py FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from alula.core.graph import Graph
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds, TensorSpec

if TYPE_CHECKING:
    from family_cases import Case

PRECISIONS = ("fp32", "fp16", "int8")
PROFILE = Profile({"batch": Range(1, 2, 4), "length": Range(1, 8, 16), "width": Range(32, 320, 640)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A graph with a call, what fp32 gives for it, and how far from that it may be."""

    name: str
    graph: Graph
    feeds: Feeds
    expected: Any
    limit: float

    @property
    def profile(self) -> Profile:
        """The axes that the graph has."""
        axes = {str(d) for spec in self.graph.inputs for d in spec.shape if isinstance(d, str)}
        return Profile({axis: PROFILE.axes[axis] for axis in sorted(axes)})


def write_all(to: Path) -> None:
    """Every family at every precision that 8.6 reads."""
    from family_cases import FAMILIES, LARGE, case_of  # noqa: PLC0415 - loads PyTorch

    to.mkdir(parents=True, exist_ok=True)
    for family in FAMILIES:
        with TemporaryDirectory() as scratch:
            # Weights are read when a graph is saved.
            case = case_of(family, Path(scratch))
            for precision in PRECISIONS:
                if family not in LARGE or precision != "fp16":
                    _write(case, family, precision, to)


def _write(case: Case, family: str, precision: str, to: Path) -> None:
    from family_cases import limit  # noqa: PLC0415 - loads PyTorch

    from alula.graphs import save  # noqa: PLC0415 - likewise

    name = f"{family}.{precision}"
    graph = save(case.graph(precision, 17), to / f"{name}.onnx", precision)
    arrays: dict[str, Any] = {**case.feeds, "expected": case.expected}
    np.savez(to / f"{name}.npz", **arrays)
    about = {**asdict(graph), "path": "", "limit": limit(family, precision)}
    (to / f"{name}.json").write_text(json.dumps(about))


def read_all(folder: Path) -> Iterator[Written]:
    """What `write_all` wrote."""
    for path in sorted(folder.glob("*.json")):
        about = json.loads(path.read_text())
        ends = {
            side: tuple(TensorSpec(**{**each, "shape": tuple(each["shape"])}) for each in about.pop(side))
            for side in ("inputs", "outputs")
        }
        limit = about.pop("limit")
        with np.load(path.with_suffix(".npz")) as arrays:
            feeds = dict(arrays)
        expected = feeds.pop("expected")
        graph = Graph(**{**about, **ends, "path": path.with_suffix(".onnx")})
        yield Written(name=path.stem, graph=graph, feeds=feeds, expected=expected, limit=limit)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
