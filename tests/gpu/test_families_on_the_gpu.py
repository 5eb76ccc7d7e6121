"""Every family and precision, compiled and run by the TensorRT found here.

Where there is no PyTorch beside it, ALULA_FAMILY_GRAPHS names a folder that family_graphs.py wrote elsewhere.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import family_graphs
import numpy as np
import pytest
from gpus import compiled, needs_gpu

from alula.core.decoding import Room, Work
from alula.core.engine import Plan
from alula.core.tensor import Feeds
from alula.engines import backend, open_decoding

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
LEVEL = 2


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
        for call in written.calls * 3:
            near(session.run(call.feeds), call, written)


def near(given: Feeds, call: family_graphs.Call, written: family_graphs.Written) -> None:
    """Each output is finite, and as far from fp32 as it may be at most where anybody sees it.

    A padded token attends to nothing, and what it gives is anybody's guess: in fp16 -10,000 swallows its scores.
    """
    for name, values in call.expected.items():
        wanted, found = (np.asarray(each, np.float64) for each in (values, given[name]))
        assert np.isfinite(found).all(), f"{written.name}: {name}"
        if name.startswith("present.") or name == "states_after":
            places = 2 if name.startswith("present.") else 1
            seen = call.feeds["attention_mask"][:, -wanted.shape[places] :].astype(bool)
            wanted, found = (np.moveaxis(each, places, 1)[seen] for each in (wanted, found))
        error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
        assert error < written.limit, f"{written.name}: {name} is {error:.2g} off"


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", family_graphs.DECODERS)
def test_a_decoder_reads_a_prompt_and_takes_a_step(
    name: str, precision: str, graphs: dict[str, family_graphs.Written], tmp_path: Path
) -> None:
    """Twelve layers in one engine, at a level that leaves each build under five minutes."""
    written = graphs[f"{name}.{precision}"]
    engine = compiled(written.graph, Plan(profile=written.profile, level=LEVEL), tmp_path / "engine")
    with closing(backend("tensorrt").open(engine)) as session:
        for call in written.calls * 3:
            near(session.run(call.feeds), call, written)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_decoder_keeps_its_cache_on_the_gpu(
    precision: str, graphs: dict[str, family_graphs.Written], tmp_path: Path
) -> None:
    """Sequences begin, join, go on and leave; each step has the logits that arrays on the host give in fp32."""
    written = {name: graphs[f"decoder.{name}"] for name in {"fp32", precision}}
    plan = Plan(profile=written[precision].profile, level=LEVEL)
    here = compiled(written[precision].graph, plan, tmp_path / "engine")
    there = backend("onnxruntime").compile(written["fp32"].graph, plan, tmp_path / "host")
    room = Room(sequences=4, blocks=16, block_tokens=4)
    rng = np.random.default_rng(0)
    with (
        closing(open_decoding({"decoder": here}, room)) as gpu,
        closing(open_decoding({"decoder": there}, room)) as host,
    ):
        for turn in range(10):
            joining, leaving = turn % 4, (turn + 1) % 4
            if turn < 6:
                for each in (gpu, host):
                    each.release(joining)
                    each.start(joining)
            going = [at for at in range(4) if at <= turn and (turn < 6 or at != leaving)]
            tokens = {at: tuple(rng.integers(2, 40, 1 + 3 * (at == joining and turn < 6))) for at in going}
            work = [Work(sequence=at, tokens=ids, answers=True) for at, ids in tokens.items()]
            found, wanted = (np.asarray(each.step(work), np.float64) for each in (gpu, host))
            error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
            assert error < written[precision].limit, (turn, error)


def test_a_decoder_in_blocks_gives_the_logits_of_the_whole(
    graphs: dict[str, family_graphs.Written], tmp_path: Path
) -> None:
    """Each is held to fp32 by itself, then to the whole, one giving its states to the next."""
    whole = graphs["decoder.fp16"]
    blocks = [graphs[f"{name}.fp16"] for name in family_graphs.BLOCKS]
    with ExitStack() as opened:
        sessions = []
        for index, block in enumerate(blocks):
            engine = compiled(block.graph, Plan(profile=block.profile, level=LEVEL), tmp_path / str(index))
            sessions.append(opened.enter_context(closing(backend("tensorrt").open(engine))))
            for call in block.calls:
                near(sessions[-1].run(call.feeds), call, block)
        for call in whole.calls:
            given: dict[str, Any] = {}
            for block, session in zip(blocks, sessions, strict=True):
                own = {spec.name for spec in block.graph.inputs}
                before = {"states": given["states_after"]} if "states" in own else {}
                feeds = {name: value for name, value in call.feeds.items() if name in own}
                given.update(session.run({**feeds, **before}))
            given.pop("states_after")
            near(given, call, whole)
