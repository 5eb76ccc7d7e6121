"""ONNX Runtime, on exactly the provider that was asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort

from alula.core.engine import Engine, Plan
from alula.core.errors import CompileError, EngineError, InputError, RunError
from alula.core.graph import Graph
from alula.core.profile import admit
from alula.core.tensor import Feeds
from alula.core.words import refuse_unless_offered
from alula.engines import folder, host
from alula.engines.foreign import said

CPU = "CPUExecutionProvider"
ERRORS_ONLY = 3

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


class OnnxRuntime:
    """Runs the portable graph as it is: its engine folder holds a record and no second copy of the weights."""

    name = "onnxruntime"

    def __init__(self, provider: str = CPU) -> None:
        if provider not in ort.get_available_providers():
            available = ", ".join(ort.get_available_providers())
            raise InputError(f"onnxruntime {ort.__version__} has no {provider!r} here; it has {available}")
        self.provider = provider

    @property
    def target(self) -> str:
        """Such as "onnxruntime 1.32.0 x86_64 avx2"."""
        return host.target(self.name, ort.__version__)

    def compile(self, graph: Graph, plan: Plan, to: Path) -> Engine:
        """Prove that the graph loads, and record it."""
        refuse_unless_offered(self.name, graph.precision)
        folder.refuse_existing(to)
        try:
            self._load(graph.path, threads=1)
        except _FAILURES as error:
            raise CompileError(f"onnxruntime cannot compile {graph.path}: {said(error)}") from error
        to.mkdir(parents=True)
        engine = Engine(backend=self.name, target=self.target, path=to, graph=graph, plan=plan)
        folder.write(engine)
        return engine

    def open(self, engine: Engine, *, threads: int = 0) -> OnnxRuntimeSession:
        """Load and optimise the graph."""
        folder.check(engine, self.target)
        try:
            loaded = self._load(engine.graph.path, host.threads_or_all(threads))
        except _FAILURES as error:
            raise EngineError(f"onnxruntime cannot load {engine.graph.path}: {said(error)}") from error
        return OnnxRuntimeSession(engine, loaded)

    def _load(self, path: Path, threads: int) -> ort.InferenceSession:
        loaded = ort.InferenceSession(path, options(threads), providers=[self.provider])
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
        if self._loaded is None:
            raise RunError("session is closed")
        admit(self.inputs, self._profile, feeds)
        # It refuses arrays that are not contiguous; those that are stay as they are.
        given = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
        try:
            return dict(zip(self._names, self._loaded.run(self._names, given), strict=True))
        except _FAILURES as error:
            raise RunError(f"onnxruntime failed: {said(error)}") from error

    def close(self) -> None:
        """Release the graph."""
        self._loaded = None


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
    chosen.log_severity_level = ERRORS_ONLY
    return chosen


def check_provider(asked: str, reported: tuple[str, ...]) -> None:
    """Refuse a session that fell back to another provider, as ONNX Runtime does without an error."""
    if not reported or reported[0] != asked:
        raise EngineError(f"onnxruntime runs on {', '.join(reported) or 'nothing'}, asked for {asked}")
