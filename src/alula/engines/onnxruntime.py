"""ONNX Runtime, on exactly the provider that was asked for."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime as ort

from alula.core.engine import Engine, Plan
from alula.core.errors import CompileError, EngineError, InputError, RunError
from alula.core.graph import Graph
from alula.core.nodes import Nodes, read_nodes
from alula.core.profile import admit
from alula.core.progress import Note, quiet
from alula.core.tensor import Feeds
from alula.core.timing import LayerTimes
from alula.core.words import refuse_unless_offered
from alula.engines import folder, host
from alula.engines.foreign import said
from alula.engines.layers import write_layers

logger = logging.getLogger(__name__)

CPU = "CPUExecutionProvider"
SILENT = 4
"""What it logs as an error it raises as well, in the same words."""

# Its own exceptions share no base below Exception, so all of them are listed from where they are defined.
_FAILURES: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    *(
        kind
        for kind in vars(ort.capi.onnxruntime_pybind11_state).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
)

_UNWRITTEN: tuple[type[Exception], ...] = (*_FAILURES, OSError, InputError)


class OnnxRuntime:
    """Runs the portable graph as it is: its engine folder holds a record and no second copy of the weights.

    With `in_order` as slowly as it takes to hold few values at once.
    """

    name = "onnxruntime"

    def __init__(self, provider: str = CPU, *, in_order: bool = False) -> None:
        if provider not in ort.get_available_providers():
            available = ", ".join(ort.get_available_providers())
            raise InputError(f"onnxruntime {ort.__version__} has no {provider!r} here; it has {available}")
        self.provider = provider
        self._in_order = in_order

    @property
    def target(self) -> str:
        """Such as "onnxruntime 1.32.0 x86_64 avx2"."""
        return host.target(self.name, ort.__version__)

    def compile(self, graph: Graph, plan: Plan, to: Path, *, note: Note = quiet) -> Engine:
        """Prove that the graph loads, and record it."""
        refuse_unless_offered(self.name, graph.precision)
        folder.refuse_existing(to)
        layers = self._optimised(graph.path, to.parent)
        if layers is None:
            try:
                self._load(graph.path, options(threads=1))
            except _FAILURES as error:
                raise CompileError(f"onnxruntime cannot compile {graph.path}: {said(error)}") from error
        to.mkdir(parents=True)
        engine = Engine(backend=self.name, target=self.target, path=to, graph=graph, plan=plan)
        folder.write(engine)
        if layers is not None:
            write_layers(engine, self.name, ort.__version__, layers)
        return engine

    def open(self, engine: Engine, *, threads: int = 0) -> OnnxRuntimeSession:
        """Load and optimise the graph."""
        return self._open(engine, self._options(threads))

    def layer_times(self, engine: Engine, feeds: Feeds, *, runs: int, threads: int = 0) -> LayerTimes:
        """Run with ONNX Runtime's profiler on, whose file is read and removed."""
        with TemporaryDirectory(prefix="alula-") as scratch:
            chosen = self._options(threads)
            chosen.enable_profiling = True
            chosen.profile_file_prefix = str(Path(scratch) / "profile")
            with closing(self._open(engine, chosen)) as session:
                session.run(feeds)
                start = perf_counter()
                for _ in range(runs):
                    session.run(feeds)
                call_ms = (perf_counter() - start) * 1e3 / runs
                events = session.profiled()
        return LayerTimes(layers=kernels(events, runs), call_ms=call_ms, runs=runs)

    def _options(self, threads: int) -> ort.SessionOptions:
        chosen = options(host.threads_or_all(threads))
        return in_order(chosen) if self._in_order else chosen

    def _open(self, engine: Engine, chosen: ort.SessionOptions) -> OnnxRuntimeSession:
        folder.check(engine, self.target)
        try:
            loaded = self._load(engine.graph.path, chosen)
        except _FAILURES as error:
            raise EngineError(f"onnxruntime cannot load {engine.graph.path}: {said(error)}") from error
        return OnnxRuntimeSession(engine, loaded)

    def _optimised(self, path: Path, beside: Path) -> dict[str, Any] | None:
        """The nodes of the graph as ONNX Runtime runs it; None where it cannot write it down, which a load may survive.

        It writes all weights too, 90 MB of MiniLM in 0.04 seconds, into a folder that is gone before this returns.
        """
        beside.mkdir(parents=True, exist_ok=True)
        try:
            with TemporaryDirectory(prefix=".optimised-", dir=beside) as scratch:
                written = Path(scratch) / "optimised.onnx"
                chosen = options(threads=1)
                chosen.optimized_model_filepath = str(written)
                weights = "session.optimized_model_external_initializers"
                chosen.add_session_config_entry(f"{weights}_file_name", "weights")
                chosen.add_session_config_entry(f"{weights}_min_size_in_bytes", "1024")
                self._load(path, chosen)
                return as_layers(read_nodes(written))
        except _UNWRITTEN as error:
            logger.info("onnxruntime did not write down how it runs %s: %s", path, said(error))
            return None

    def _load(self, path: Path, chosen: ort.SessionOptions) -> ort.InferenceSession:
        loaded = ort.InferenceSession(path, chosen, providers=[self.provider])
        check_provider(self.provider, tuple(loaded.get_providers()))
        return loaded


class OnnxRuntimeSession:
    """A loaded graph."""

    def __init__(self, engine: Engine, loaded: ort.InferenceSession) -> None:
        self.inputs = engine.inputs
        self.outputs = engine.outputs
        self._profile = engine.plan.profile
        self._names = [spec.name for spec in engine.outputs]
        self._loaded: ort.InferenceSession | None = loaded

    def run(self, feeds: Feeds) -> Feeds:
        """Run once; ONNX Runtime allocates the outputs anew each time."""
        return self.pick(feeds, self._names)

    def pick(self, feeds: Feeds, names: Collection[str]) -> Feeds:
        """The same, but these outputs alone."""
        if self._loaded is None:
            raise RunError("session is closed")
        admit(self.inputs, self._profile, feeds)
        # It refuses arrays that are not contiguous; those that are stay as they are.
        given = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
        try:
            return dict(zip(names, self._loaded.run([*names], given), strict=True))
        except _FAILURES as error:
            raise RunError(f"onnxruntime failed: {said(error)}") from error

    def profiled(self) -> list[dict[str, Any]]:
        """The events since the session began, where the profiler is on; it ends with this."""
        if self._loaded is None:
            raise RunError("session is closed")
        events: list[dict[str, Any]] = json.loads(Path(self._loaded.end_profiling()).read_text("utf-8"))
        return events

    def close(self) -> None:
        """Release the graph."""
        self._loaded = None


def as_layers(graph: Nodes) -> dict[str, Any]:
    """The optimised graph as JSON: its nodes, and the types of its values."""
    return {
        "nodes": [
            {
                "name": node.name,
                "op_type": node.op,
                "domain": node.domain,
                "inputs": list(node.inputs),
                "outputs": list(node.outputs),
                **({"to": node.casts_to} if node.casts_to else {}),
            }
            for node in graph.nodes
        ],
        "values": {
            name: [typed.dtype, None if typed.shape is None else list(typed.shape)]
            for name, typed in graph.types.items()
        },
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "constants": sorted(graph.constants),
    }


def kernels(events: Sequence[dict[str, Any]], runs: int) -> tuple[tuple[str, float], ...]:
    """The mean milliseconds of each node over the last `runs` calls, in the order nodes run.

    Nodes of one name are told apart by their index.
    """
    suffix = "_kernel_time"
    took: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(suffix):
            key = (event["name"].removesuffix(suffix), event["args"].get("node_index", ""))
            took.setdefault(key, []).append(event["dur"] / 1e3)
    return tuple((name, sum(times[-runs:]) / runs) for (name, _), times in took.items())


def options(threads: int) -> ort.SessionOptions:
    """How every graph is loaded."""
    chosen = ort.SessionOptions()
    chosen.intra_op_num_threads = threads
    chosen.inter_op_num_threads = 1
    chosen.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    # Threads that spin between runs took 1.6 times the processor time, which the HTTP front next door needs.
    chosen.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # As fast without, and what a large batch took goes back: 162 MiB resident instead of 174 with MiniLM.
    chosen.enable_cpu_mem_arena = False
    chosen.log_severity_level = SILENT
    return chosen


def in_order(chosen: ort.SessionOptions) -> ort.SessionOptions:
    """Let nodes run in the order of the graph, and little be joined.

    Left to itself it takes what hangs off a value last: all of them are alive at once then, 2.9 GB instead of 0.5 for
    an image of 1280 x 1280 through a ResNet-50 whose values are measured.
    """
    chosen.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return chosen


def check_provider(asked: str, reported: tuple[str, ...]) -> None:
    """Refuse a session that fell back to another provider, as ONNX Runtime does without an error."""
    if not reported or reported[0] != asked:
        raise EngineError(f"onnxruntime runs on {', '.join(reported) or 'nothing'}, asked for {asked}")
