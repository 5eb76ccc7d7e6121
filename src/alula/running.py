"""A graph that nobody keeps, in ONNX Runtime: to observe it, to ask it, to search with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from alula import graphs
from alula.core.engine import Plan, Session
from alula.core.model import ModelSpec
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds, axis_sizes
from alula.engines import backend as backend_named


@contextmanager
def running(model: graphs.Model, profile: Profile) -> Iterator[Session]:
    """A session on a graph, whose file is gone when the block ends."""
    backend = backend_named("onnxruntime")
    with TemporaryDirectory(prefix="alula-") as scratch:
        graph = graphs.save(model, Path(scratch) / "graph.onnx", "fp32")
        engine = backend.compile(graph, Plan(profile=profile), Path(scratch) / "engine")
        with closing(backend.open(engine)) as session:
            yield session


def profile_over(spec: ModelSpec, feeds: Iterable[Feeds]) -> Profile:
    """A profile that takes all these calls."""
    part = spec.part("encoder")
    sizes = [axis_sizes(part.inputs, call) for call in feeds]
    return Profile({axis: Range(1, 1, max(each[axis] for each in sizes)) for axis in part.axes})
