"""TensorRT sessions on the GPU of this machine, if there is one, and on one that is pretended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_gpu import FakeCudart, FakeEngine

from alula.core.engine import Engine, Plan
from alula.core.graph import Graph
from alula.engines import backend, traits
from alula.engines.cuda import Cuda
from alula.engines.tensorrt.lane import Loaded
from alula.engines.tensorrt.scratch import Scratch
from alula.engines.tensorrt.session import TensorRtSession

REASON = traits("tensorrt").cannot_run
"""Why nothing runs on a GPU here; empty if it does."""

needs_gpu = pytest.mark.skipif(bool(REASON), reason=f"NOT RUN ON A GPU: {REASON}")


def pretended(
    graph: Graph,
    plan: Plan,
    to: Path,
    cudart: FakeCudart | None = None,
    *,
    scratches: Sequence[Scratch] = (),
    scratch_bytes: int = 1 << 16,
) -> TensorRtSession:
    """A session whose GPU is a fake one."""
    cudart = cudart or FakeCudart()
    engine = Engine(backend="tensorrt", target="tensorrt 8.6.0", path=to, graph=graph, plan=plan)
    loaded = Loaded(
        name="tensorrt 8.6.0",
        module=SimpleNamespace(IProfiler=object),
        engine=FakeEngine(engine, cudart, scratch_bytes),
        runtime=None,
        heard=SimpleNamespace(errors=[]),
    )
    return TensorRtSession(engine, loaded, Cuda(cudart), scratches or (Scratch(), Scratch()))


def compiled(graph: Graph, plan: Plan, to: Path) -> Engine:
    """An engine for the GPU here."""
    return backend("tensorrt").compile(graph, plan, to)
