"""The decoders that are run on a GPU elsewhere, in the dialect of TensorRT 8.6: computed here, and held to fp32."""

from __future__ import annotations

from typing import Any

import decoder_cases
import numpy as np
import pytest
from decoder_cases import Case, as_declared, cases
from oldest import refusals
from tiny_decoders import session_of


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    return list(cases(tmp_path_factory.mktemp("decoders")))


def test_each_call_in_the_words_of_8_6_stays_near_fp32(made: list[Case]) -> None:
    for case in made:
        precisions = ("fp16",) if case.name.startswith("decoder-") else ("fp32", "fp16")
        for precision in precisions:
            graph = case.graph(precision, 17)
            assert refusals(graph) == [], case.name
            session = session_of(graph)
            for call in case.calls:
                given = session.run(None, dict(as_declared(graph, call.feeds)))
                for value, wanted in zip(given, call.expected.values(), strict=True):
                    off = np.linalg.norm(value.astype(np.float32) - wanted) / np.linalg.norm(wanted)
                    assert off < decoder_cases.LIMITS[precision] / 2, (case.name, precision)


def test_blocks_one_behind_another_are_the_whole(made: list[Case]) -> None:
    whole, blocks = made[0], [case for case in made if case.name.startswith("decoder-")]
    assert len(blocks) == decoder_cases.LAYERS // decoder_cases.BLOCK
    graphs = [block.graph("fp32", 17) for block in blocks]
    sessions = [session_of(graph) for graph in graphs]
    for call in whole.calls:
        given: dict[str, Any] = {}
        for graph, session in zip(graphs, sessions, strict=True):
            own = {str(value.name) for value in graph.graph.inputs}
            feeds = {name: value for name, value in call.feeds.items() if name in own}
            before = {"states": given.pop("states_after")} if "states" in own else {}
            outputs = [str(value.name) for value in graph.graph.outputs]
            given.update(zip(outputs, session.run(None, {**feeds, **before}), strict=True))
        assert given.keys() == call.expected.keys()
        for name, wanted in call.expected.items():
            np.testing.assert_allclose(given[name], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
