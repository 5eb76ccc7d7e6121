"""A graph that nobody keeps, or a file of the user's, in ONNX Runtime: to observe it, to ask it, to search with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from alula import graphs
from alula.core.engine import Plan, Session
from alula.core.errors import CompileError, InputError
from alula.core.graph import Graph
from alula.core.model import ModelSpec, Part
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds, axis_sizes
from alula.engines import backend as backend_named


@contextmanager
def running(model: graphs.Model, profile: Profile, *, in_order: bool = False) -> Iterator[Session]:
    """A session on a graph, whose file is gone when the block ends.

    `in_order` is for graphs that observe their own values: each is let go once it is.
    """
    backend = backend_named("onnxruntime")
    if in_order:
        from alula.engines.onnxruntime import OnnxRuntime  # noqa: PLC0415 - loads the vendor

        backend = OnnxRuntime(in_order=True)
    with TemporaryDirectory(prefix="alula-") as scratch:
        graph = graphs.save(model, Path(scratch) / "graph.onnx", "fp32")
        engine = backend.compile(graph, Plan(profile=profile), Path(scratch) / "engine")
        with closing(backend.open(engine)) as session:
            yield session


@contextmanager
def running_file(path: Path, part: Part, profile: Profile, outputs: Mapping[str, str]) -> Iterator[Session]:
    """A session on an ONNX file that stays as it is; `outputs` gives its names by the part's.

    Raises InputError where ONNX Runtime does not take the file.
    """
    backend = backend_named("onnxruntime")
    named = tuple(replace(tensor, name=outputs[tensor.name]) for tensor in part.outputs)
    graph = Graph(path=path, digest="", opset=0, nodes=0, precision="fp32", inputs=part.inputs, outputs=named)
    with TemporaryDirectory(prefix="alula-") as scratch:
        try:
            engine = backend.compile(graph, Plan(profile=profile), Path(scratch) / "engine")
        except CompileError as error:
            raise InputError(f"{error}; the file is held to itself there, so it has to run there") from error
        with closing(backend.open(engine)) as session:
            yield Renamed(session, part)


class Renamed:
    """A session whose outputs go by the names of the part."""

    def __init__(self, session: Session, part: Part) -> None:
        self.inputs, self.outputs = part.inputs, part.outputs
        self._session = session

    def run(self, feeds: Feeds) -> Feeds:
        """Run once."""
        given = self._session.run(feeds)
        theirs = [tensor.name for tensor in self._session.outputs]
        return {ours.name: given[name] for ours, name in zip(self.outputs, theirs, strict=True)}

    def close(self) -> None:
        """Release the graph."""
        self._session.close()


def profile_over(spec: ModelSpec, feeds: Iterable[Feeds]) -> Profile:
    """A profile that takes all these calls."""
    part = spec.part("encoder")
    sizes = [axis_sizes(part.inputs, call) for call in feeds]
    return Profile({axis: Range(1, 1, max(each[axis] for each in sizes)) for axis in part.axes})
