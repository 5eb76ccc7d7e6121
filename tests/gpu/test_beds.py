"""Caches that stay on the GPU, on a pretended one: what is replayed, what memory is asked for and given back."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from fake_gpu import FakeCudart
from gpus import pretended
from writers import IN_PLACE_SIZES, written

from alula.core.decoding import Room, Work
from alula.core.engine import Engine
from alula.core.errors import OutOfMemoryError, ShapeError
from alula.engines.dense import Dense, Loaded
from alula.engines.tensorrt import beds as beds_module
from alula.engines.tensorrt.beds import Bed, Layout
from alula.engines.tensorrt.session import TensorRtSession

pytest.importorskip("transformers")
import tiny_decoders

ROOM = Room(sequences=8, blocks=64, block_tokens=4)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("decoder")
    made = tiny_decoders.opened(folder, tiny_decoders.checkpoint(folder, "llama"))
    return written({"decoder": made.graph}, "tensorrt", folder, IN_PLACE_SIZES, opset=17)["decoder"]


class Opened:
    """A decoder on a pretended GPU."""

    def __init__(self, engine: Engine, to: Path) -> None:
        self.cudart = FakeCudart()
        self.session: TensorRtSession = pretended(engine.graph, engine.plan, to, self.cudart)
        part = Loaded(session=self.session, profile=engine.plan.profile)
        self.dense = Dense({"decoder": part}, ROOM)

    def step(self, *sequences: int, tokens: int = 1) -> None:
        work = [Work(sequence=each, tokens=(3,) * tokens, answers=True) for each in sequences]
        assert np.isfinite(self.dense.step(work)).all()

    def calls(self, name: str) -> int:
        """How often since the last look."""
        count = self.cudart.calls.count(name)
        self.cudart.calls = [each for each in self.cudart.calls if each != name]
        return count


@pytest.fixture
def opened(engine: Engine, tmp_path: Path) -> Opened:
    return Opened(engine, tmp_path)


def test_steps_are_replayed_and_their_caches_never_leave(opened: Opened) -> None:
    """What is copied is what a step is told, its logits, and what it adds to the caches: that by one call."""
    opened.dense.start(0)
    opened.step(0, tokens=5)
    for _ in range(4):
        opened.step(0)
    assert opened.calls("cudaGraphInstantiate") == 1
    opened.calls("cudaGraphLaunch"), opened.calls("cudaMemcpyAsync"), opened.calls("cudaMemcpy3DAsync")
    for _ in range(10):
        opened.step(0)
    assert opened.calls("cudaGraphLaunch") == opened.calls("cudaMemcpy3DAsync") == 10
    assert opened.calls("cudaMemcpyAsync") == 0


def test_rows_that_join_are_copied_by_one_call_each(opened: Opened) -> None:
    """A prompt lies in one piece at the first places; what came behind the end of a row is another one."""
    for each in range(3):
        opened.dense.start(each)
        opened.step(each, tokens=2 + each)
    opened.calls("cudaMemcpy3DAsync")
    opened.step(0, 1, 2)
    assert opened.calls("cudaMemcpy3DAsync") == 3 + 1
    opened.step(0, 1, 2)
    assert opened.calls("cudaMemcpy3DAsync") == 1
    opened.step(0)
    assert opened.calls("cudaMemcpy3DAsync") == 3 * 2 + 1


def test_a_step_takes_one_piece_of_memory_and_not_two(opened: Opened) -> None:
    opened.dense.start(0)
    opened.calls("cudaMalloc")
    opened.step(0, tokens=5)
    opened.step(0)
    assert opened.calls("cudaMalloc") == 1


@pytest.mark.parametrize("length", range(9))
def test_a_bed_goes_round(length: int) -> None:
    """Places as they are read, the older ones first, are those that were written last."""
    width, written = 8, np.full(8, -1)
    bed = Bed(memory=None, half=0, count=1, width=width)
    for token, new in enumerate((3, 1, 1, 2, 1, 1, 1, 4)):
        bed = bed.behind(new)
        places = [place for begin, end in bed.lies(new) for place in range(begin, end)]
        written[places] = token * 10 + np.arange(new)
    read = [written[place] for begin, end in bed.lies(length) for place in range(begin, end)]
    assert read == [31, 40, 50, 60, 70, 71, 72, 73][8 - length :]


def test_memory_is_used_again_and_bounded(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beds_module, "SPARE", 2)
    used = []
    for turn in range(12):
        for each in range(4):
            opened.dense.start(each)
            opened.step(each, tokens=1 + (turn + each) % 5)
        for count in (4, 3, 2):
            opened.step(*range(count))
            opened.step(*range(count))
        for each in range(4):
            opened.dense.release(each)
        gc.collect()
        used.append(opened.cudart.used)
    assert max(used[3:]) <= max(used[:3])
    opened.dense.close()
    assert not opened.cudart.used
    assert not opened.cudart.graphs


def test_a_full_gpu_loses_the_sequences_of_the_step_alone(opened: Opened) -> None:
    for each in range(2):
        opened.dense.start(each)
        opened.step(each, tokens=2)
    opened.step(0)
    opened.cudart.memory = opened.cudart.used
    opened.dense.start(2)
    with pytest.raises(OutOfMemoryError, match="GPU out of memory"):
        opened.step(2, tokens=2)
    opened.step(0)
    opened.cudart.memory *= 2
    opened.dense.release(2)
    opened.dense.start(2)
    opened.step(2, tokens=2)
    opened.step(0, 1, 2)


def test_a_cache_that_is_wider_than_the_engine_takes_is_refused(opened: Opened) -> None:
    caches = opened.session.caches()
    assert caches is not None
    wide = caches.stacked([], width=49, count=0)
    with pytest.raises(ShapeError, match=r"axis 'past' is 49; built for 1\.\.48"):
        caches.run(
            {
                "input_ids": np.ones((1, 1), np.int64),
                "position_ids": np.ones((1, 1), np.int64),
                "attention_mask": np.ones((1, 50), np.int64),
                "answers": np.zeros(1, np.int64),
            },
            wide,
            {},
        )


@pytest.mark.parametrize(("heads", "place", "width"), [(3, 128, 64), (1, 24, 50), (5, 2, 7), (2, 2, 128)])
def test_tensors_of_a_bed_begin_where_tensors_may(heads: int, place: int, width: int) -> None:
    layout = Layout(tensors=4, heads=heads, place_bytes=place)
    for count in (1, 3, 8):
        size = layout.tensor_bytes(count, width)
        least = count * heads * width * place
        assert size % 256 == 0
        assert least <= size < least + 256 * width * place
        assert layout.bytes(count, width) == 4 * size


@pytest.mark.parametrize("place", [32, 128, 192, 256])
@pytest.mark.parametrize("heads", [1, 2, 3, 8])
def test_new_places_have_room_however_few_they_are(heads: int, place: int) -> None:
    """Rows of an odd number of places have more behind them: 511 of SmolLM2 took more than 512."""
    layout = Layout(tensors=60, heads=heads, place_bytes=place)
    for count in (1, 3, 8):
        room = layout.most_bytes(count, 512)
        taken = [layout.bytes(rows, width) for rows in range(1, count + 1) for width in range(1, 513)]
        assert max(taken) <= room
