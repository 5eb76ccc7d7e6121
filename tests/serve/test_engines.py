"""Batches that run beside one another in an engine process."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import numpy as np
import pytest
import served

from alula.bundles import Bundle
from alula.core.engine import OpensLanes, Session
from alula.core.errors import RunError
from alula.core.tensor import Feeds
from alula.engines import backend
from alula.engines.openvino import lanes_within
from alula.serve.engines import Engines
from alula.serve.named import Named
from alula.serve.process import Opening
from alula.serve.wire import Kind, Message, error_of


class Laned:
    """A session whose calls end once as many as it has lanes have begun, or once they are told to."""

    lanes = 2

    def __init__(self, session: Session) -> None:
        self.inputs, self.outputs = session.inputs, session.outputs
        self._session = session
        self._all_here = threading.Barrier(2, timeout=10)
        self.tried = 0

    def run(self, feeds: Feeds) -> Feeds:
        if (feeds["input_ids"] == 1).all():
            self.tried += 1  # what an engine is tried with when it is opened
        elif (feeds["input_ids"] == 9).all():
            raise RunError("bad kernel")
        else:
            self._all_here.wait()
        return self._session.run(feeds)

    def close(self) -> None:
        self._session.close()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return served.make_bundle(tmp_path / "bundle")


def batch(number: int, token: int) -> Message:
    ids = np.full((1, 4), token, np.int64)
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return Message(kind=Kind.RUN, number=number, meta={"model": 0}, arrays=feeds)


def test_batches_of_a_session_with_lanes_run_beside_one_another(bundle: Path) -> None:
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def opener(root: Path, opening: Opening) -> Laned:
        engine = Bundle.open(root).engine("encoder")
        return Laned(backend(engine.backend).open(engine))

    engines = Engines(opener, Opening(), post=inbox.put)
    ready = engines.open(0, Named.at(bundle))
    assert ready.kind is Kind.READY
    assert ready.meta["lanes"] == 2
    assert {(rows, length) for rows, length, _ in ready.meta["timings"]} <= {(1, 16), (4, 16)}
    # Neither would end without the other.
    assert list(engines.turn([batch(5, 2), batch(6, 3), batch(7, 9)])) == []
    assert not engines.busy
    answers: dict[int, Message] = {}
    while len(answers) < 3:
        (answer,) = engines.turn([inbox.get(timeout=10)])
        answers[answer.number] = answer
    assert answers[5].kind is answers[6].kind is Kind.RESULT
    assert answers[5].meta["seconds"] > 0
    assert not np.array_equal(answers[5].arrays["embedding"], answers[6].arrays["embedding"])
    assert isinstance(error_of(answers[7]), RunError)


@pytest.mark.parametrize(("threads", "lanes"), [(1, 1), (2, 2), (4, 2), (8, 2), (16, 4), (64, 16)])
def test_lanes_are_few_and_have_threads(threads: int, lanes: int) -> None:
    assert lanes_within(threads) == lanes
    assert isinstance(backend("openvino"), OpensLanes)
