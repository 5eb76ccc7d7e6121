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
    import decoder_cases
    from family_cases import Case

PRECISIONS = ("fp32", "fp16", "int8")
DECODERS = ("decoder", "t5-encoder", "t5-cross", "t5-decoder", "wide-encoder", "wide-cross", "wide-decoder")
BLOCKS = tuple(f"decoder-{first}" for first in range(0, 12, 6))
"""A decoder whole and in blocks, in the order in which one gives states to the next."""

PROFILE = Profile(
    {
        "batch": Range(1, 2, 4),
        "length": Range(1, 8, 16),
        "width": Range(32, 320, 640),
        "past": Range(1, 8, 16),
        "total": Range(1, 16, 32),
        "source": Range(1, 8, 16),
        "answers": Range(1, 1, 16),
    }
)
WIDE = Profile(
    {
        "batch": Range(1, 1, 8),
        "length": Range(1, 1, 1),
        "past": Range(64, 512, 2048),
        "total": Range(65, 513, 2049),
        "source": Range(1, 128, 512),
        "answers": Range(1, 1, 1),
    }
)
"""As a build has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What a graph is given, and what fp32 gives for it."""

    feeds: Feeds
    expected: Feeds


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A graph with calls that may follow one another, and how far from fp32 it may be."""

    name: str
    graph: Graph
    calls: tuple[Call, ...]
    limit: float

    @property
    def profile(self) -> Profile:
        """The axes that the graph has."""
        axes = {str(d) for spec in self.graph.inputs for d in spec.shape if isinstance(d, str)}
        sizes = WIDE if self.name.startswith("wide-") else PROFILE
        return Profile({axis: sizes.axes[axis] for axis in sorted(axes)})


def write_all(to: Path) -> None:
    """Every family at every precision that 8.6 reads, decoders among them; blocks in fp16 alone."""
    from decoder_cases import cases  # noqa: PLC0415 - loads PyTorch
    from family_cases import FAMILIES, LARGE, case_of  # noqa: PLC0415 - loads PyTorch

    to.mkdir(parents=True, exist_ok=True)
    for family in FAMILIES:
        with TemporaryDirectory() as scratch:
            # Weights are read when a graph is saved.
            case = case_of(family, Path(scratch))
            for precision in PRECISIONS:
                if family not in LARGE or precision != "fp16":
                    _write(case, family, precision, to)

    with TemporaryDirectory() as scratch:
        for each in cases(Path(scratch)):
            for precision in ("fp16",) if each.name in BLOCKS else ("fp32", "fp16"):
                _write_decoder(each, precision, to)


def _write(case: Case, family: str, precision: str, to: Path) -> None:
    from family_cases import limit  # noqa: PLC0415 - loads PyTorch

    from alula.graphs import save  # noqa: PLC0415 - likewise

    graph = save(case.graph(precision, 17), to / f"{family}.{precision}.onnx", precision)
    given = {graph.outputs[0].name: case.expected}
    _keep(graph, [Call(feeds=case.feeds, expected=given)], limit(family, precision))


def _write_decoder(case: decoder_cases.Case, precision: str, to: Path) -> None:
    from decoder_cases import LIMITS, as_declared  # noqa: PLC0415 - loads PyTorch

    from alula.graphs import save  # noqa: PLC0415 - likewise

    model = case.graph(precision, 17)
    graph = save(model, to / f"{case.name}.{precision}.onnx", precision)
    calls = [Call(feeds=as_declared(model, call.feeds), expected=call.expected) for call in case.calls]
    _keep(graph, calls, LIMITS[precision])


def _keep(graph: Graph, calls: list[Call], limit: float) -> None:
    """Calls and facts of a graph, beside it."""
    arrays: dict[str, Any] = {}
    for index, call in enumerate(calls):
        for side, values in (("in", call.feeds), ("out", call.expected)):
            arrays.update({f"{index}/{side}/{name}": value for name, value in values.items()})
    np.savez(graph.path.with_suffix(".npz"), **arrays)
    about = {**asdict(graph), "path": "", "limit": limit, "calls": len(calls)}
    graph.path.with_suffix(".json").write_text(json.dumps(about))


def read_all(folder: Path) -> Iterator[Written]:
    """What `write_all` wrote."""
    for path in sorted(folder.glob("*.json")):
        about = json.loads(path.read_text())
        ends = {
            side: tuple(TensorSpec(**{**each, "shape": tuple(each["shape"])}) for each in about.pop(side))
            for side in ("inputs", "outputs")
        }
        limit, count = about.pop("limit"), about.pop("calls")
        with np.load(path.with_suffix(".npz")) as arrays:
            given = dict(arrays)
        calls = tuple(
            Call(feeds=_under(given, f"{index}/in/"), expected=_under(given, f"{index}/out/"))
            for index in range(count)
        )
        graph = Graph(**{**about, **ends, "path": path.with_suffix(".onnx")})
        yield Written(name=path.stem, graph=graph, calls=calls, limit=limit)


def _under(arrays: Feeds, prefix: str) -> Feeds:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
