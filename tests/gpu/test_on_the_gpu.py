"""What only a GPU can show; skipped, and said so, where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import encoders
import numpy as np
import pytest
from encoders import PROFILE, feeds, near, same
from gpus import compiled, needs_gpu

from alula.core.engine import Engine, Plan
from alula.core.errors import CompileError, EngineError, OutOfMemoryError
from alula.core.graph import Graph
from alula.core.profile import Profile, Range
from alula.engines import backend
from alula.engines.cuda import Cuda
from alula.engines.tensorrt.session import TensorRtSession

pytestmark = [needs_gpu, pytest.mark.timeout(600)]

RUNS = 10_000


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return encoders.write(tmp_path_factory.mktemp("graph") / "encoder.onnx")


@pytest.fixture(scope="module")
def engine(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return compiled(graph, Plan(profile=PROFILE), tmp_path_factory.mktemp("engine") / "engine")


def opened(engine: Engine) -> TensorRtSession:
    session = backend("tensorrt").open(engine)
    assert isinstance(session, TensorRtSession)
    return session


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_ten_thousand_runs_of_mixed_shapes_take_no_more_memory(engine: Engine) -> None:
    session, cuda = opened(engine), Cuda()
    shapes = np.random.default_rng(1).integers((1, 1), (17, 129), (RUNS, 2)).tolist()
    levels = []
    for at, (rows, length) in enumerate(shapes):
        session.run(feeds(rows, length))
        if at % (RUNS // 4) == RUNS // 4 - 1:
            levels.append((cuda.free_bytes()[0] / 2**20, resident_mib()))
    session.close()
    (device, host), (device_end, host_end) = levels[0], levels[-1]
    assert device - device_end < 8, f"MiB of the GPU went on being taken: {levels}"
    assert host_end - host < 8, f"resident MiB went on growing: {levels}"


def test_a_full_gpu_refuses_one_engine_and_leaves_another_usable(
    graph: Graph, engine: Engine, tmp_path: Path
) -> None:
    wide = Profile({"batch": Range(1, 4, 4096), "length": Range(1, 16, 128)})
    large = compiled(graph, Plan(profile=wide), tmp_path / "engine")
    session, cuda = opened(engine), Cuda()
    before = session.run(feeds(3, 9))
    free, _ = cuda.free_bytes()
    taken = cuda.malloc(free - (48 << 20))
    try:
        with pytest.raises((OutOfMemoryError, EngineError)) as refused:
            opened(large)
        assert "memory" in str(refused.value).lower()
        assert same(session.run(feeds(3, 9)), before)
    finally:
        cuda.free(taken)
    assert same(session.run(feeds(3, 9)), before)
    roomy = opened(large)
    assert roomy.run(feeds(4096, 128))["embedding"].shape == (4096, encoders.WIDTH)
    roomy.close()
    session.close()


LOST = """
import sys
from pathlib import Path
import encoders
from alula.core.engine import Plan
from alula.engines import backend
from gpus import compiled
folder = Path(sys.argv[1])
engine = compiled(encoders.write(folder / "g.onnx"), Plan(profile=encoders.PROFILE), folder / "engine")
session = backend("tensorrt").open(engine)
session.run(encoders.feeds(1, 4))
for context in session._lanes[0]._contexts.values():
    context.set_tensor_address("embedding", 0x10)
for _ in range(2):
    try:
        session.run(encoders.feeds(2, 5))
    except Exception as error:
        print(type(error).__name__, error)
session.close()
print("closed")
"""


def test_an_error_that_stays_is_named_and_ends_nothing_but_the_session(tmp_path: Path) -> None:
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LOST), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    first, second, closed = done.stdout.splitlines()
    assert "DeviceLostError the GPU is lost to this process after" in second
    assert "start the process again" in second
    assert first.startswith("DeviceLostError")
    assert closed == "closed"


@pytest.mark.parametrize("damage", ["cut", "scrambled", "empty"])
def test_a_damaged_engine_is_refused_without_a_crash(engine: Engine, tmp_path: Path, damage: str) -> None:
    # NVIDIA/TensorRT#2072: a truncated engine, or one of another build, took the process down.
    folder = tmp_path / "engine"
    folder.mkdir()
    plan = (engine.path / "engine.plan").read_bytes()
    content = {"cut": plan[: len(plan) // 2], "scrambled": os.urandom(len(plan)), "empty": b""}[damage]
    (folder / "engine.plan").write_bytes(content)
    record = json.loads((engine.path / "engine.json").read_text())
    (folder / "engine.json").write_text(json.dumps(record))
    with pytest.raises(EngineError, match="build the engine again"):
        backend("tensorrt").open(replace(engine, path=folder))


def test_an_engine_of_another_gpu_or_version_is_refused_by_name(engine: Engine) -> None:
    other = engine.target.replace("tensorrt 8", "tensorrt 7")
    with pytest.raises(EngineError) as refused:
        backend("tensorrt").open(replace(engine, target=other))
    assert f"built for {other!r}, running on {engine.target!r}" in str(refused.value)


def test_a_time_limit_ends_the_build(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"the time limit of 0.5 s ended the build"):
        compiled(graph, Plan(profile=PROFILE, time_limit_s=0.5), tmp_path / "engine")


def test_a_portable_engine_runs_here_too(graph: Graph, engine: Engine, tmp_path: Path) -> None:
    try:
        portable = compiled(graph, Plan(profile=PROFILE, portable=True), tmp_path / "engine")
    except CompileError as error:
        # A TensorRT without its lean runtime, as the wheel of 8.6.0 comes, can build none.
        assert "pip install tensorrt-lean" in str(error)  # noqa: PT017 - either it is built or this is said
        return
    session = opened(portable)
    given = feeds(4, 20)
    assert near(session.run(given), opened(engine).run(given), given["attention_mask"], 1e-4)
    session.close()


def test_the_timing_cache_makes_the_second_build_quicker_and_no_less_right(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "cache"))
    sizes = Profile({"batch": Range(1, 2, 4), "length": Range(1, 8, 16)})
    first = compiled(graph, Plan(profile=sizes), tmp_path / "first")
    assert list((tmp_path / "cache" / "timing").glob("*.cache"))
    second = compiled(graph, Plan(profile=sizes), tmp_path / "second")
    given = feeds(2, 8)
    assert same(opened(first).run(given), opened(second).run(given))


def test_layers_are_written_down(engine: Engine) -> None:
    document = json.loads((engine.path / "layers.json").read_text())
    assert document["source"] == "tensorrt"
    assert document["layers"]["Layers"]
