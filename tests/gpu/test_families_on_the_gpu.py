"""Every family and precision, compiled and run by the TensorRT found here.

Where there is no PyTorch beside it, ALULA_FAMILY_GRAPHS names a folder that family_graphs.py wrote elsewhere.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import family_graphs
import numpy as np
import pytest
from gpus import compiled, needs_gpu

from alula.core.engine import Plan
from alula.engines import backend

pytestmark = [needs_gpu, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, family_graphs.Written]:
    given = os.environ.get("ALULA_FAMILY_GRAPHS")
    folder = Path(given) if given else tmp_path_factory.mktemp("graphs")
    if not given:
        pytest.importorskip(
            "torch", reason="set ALULA_FAMILY_GRAPHS to a folder of graphs written where PyTorch is"
        )
        family_graphs.write_all(folder)
    return {written.name: written for written in family_graphs.read_all(folder)}


FAMILIES = ("bert", "distilbert", "electra", "mpnet", "roberta", "sdpa", "vit", "dinov2", "deberta-v2")
IMAGES = ("resnet", "efficientnet", "recogniser")


@pytest.mark.parametrize("precision", family_graphs.PRECISIONS)
@pytest.mark.parametrize("family", [*FAMILIES, *IMAGES])
def test_a_family_runs_and_stays_near_fp32(
    family: str, precision: str, graphs: dict[str, family_graphs.Written], tmp_path: Path
) -> None:
    name = f"{family}.{precision}"
    if name not in graphs:
        pytest.skip(f"{name} is not written")
    written = graphs[name]
    engine = compiled(written.graph, Plan(profile=written.profile, level=1), tmp_path / "engine")
    with closing(backend("tensorrt").open(engine)) as session:
        answers = [next(iter(session.run(written.feeds).values())) for _ in range(3)]
    expected = np.asarray(written.expected, np.float64)
    for answer in answers:
        assert np.isfinite(np.asarray(answer, np.float64)).all()
        error = np.linalg.norm(np.asarray(answer, np.float64) - expected) / np.linalg.norm(expected)
        assert error < written.limit, f"{name} is {error:.2g} off"
