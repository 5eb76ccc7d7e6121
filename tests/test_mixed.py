"""The search for layers to keep: its parts are exact, and it finds the layers that were made sensitive."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from alula import families, graphs
from alula.calibrate import calibrate
from alula.core.check import Check
from alula.core.model import ModelSpec, Part
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds
from alula.data import Dataset, Example
from alula.mixed import Effect, Lowered, Run, Search, fewest, order, strain, switched
from alula.questions import BUDGET, Call, Promise, Questions, questions_of
from alula.running import running

CHECK = Check(
    output="embedding",
    metric="cosine_distance_mean",
    samples=8,
    worst=0.002,
    mean=0.002,
    limit=0.004,
    higher_is_better=False,
    reference="own-graph",
)
PROFILE = Profile({"batch": Range(1, 8, 8), "length": Range(1, 16, 32)})


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ([CHECK], 0.5),
        ([CHECK, replace(CHECK, worst=0.006, limit=0.02)], 0.5),
        ([CHECK, replace(CHECK, worst=0.06, limit=0.02)], 3.0),
        ([replace(CHECK, worst=-0.1)], 0.0),  # a gain
        ([replace(CHECK, worst=0.0, limit=0.0)], 0.0),
        ([replace(CHECK, worst=1e-9, limit=0.0)], math.inf),
        ([CHECK, replace(CHECK, worst=math.nan)], math.inf),
        ([CHECK, replace(CHECK, samples=0)], math.inf),
        ([], math.inf),
    ],
)
def test_strain_is_the_largest_loss_as_a_share_of_its_limit(checks: list[Check], expected: float) -> None:
    assert strain(checks) == pytest.approx(expected)


def effect(strain: float, error: float = 0.0, cost: int = 1) -> Effect:
    return Effect(strain=strain, error=error, cost=cost)


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        ({"a": effect(0.1), "b": effect(0.3), "c": effect(0.2)}, "bca"),
        ({"a": effect(0.3, cost=4), "b": effect(0.1)}, "ba"),  # a third of the harm for a quarter of the cost
        ({"a": effect(0.0, 0.1), "b": effect(0.0, 0.2)}, "ba"),  # no decision changed
        ({"a": effect(0.0, 0.3, 4), "b": effect(0.0, 0.1)}, "ba"),
        ({"b": effect(0.1), "a": effect(0.1)}, "ab"),
        ({"a": effect(9.0), "b": effect(math.inf, math.inf)}, "ba"),
        ({"b": effect(math.inf, math.inf), "a": effect(math.inf, math.inf, 5)}, "ab"),
        ({}, ""),
    ],
)
def test_the_best_bargain_comes_first(effects: Mapping[str, Effect], expected: str) -> None:
    assert "".join(order(effects)) == expected


SIZES = st.floats(0, 100)
EFFECTS = st.builds(effect, SIZES, SIZES, st.integers(1, 1000))


@given(st.dictionaries(st.text("abc", min_size=1), EFFECTS), st.randoms())
def test_the_order_is_of_all_layers_and_does_not_depend_on_theirs(
    effects: dict[str, Effect], random: Random
) -> None:
    shuffled = dict(sorted(effects.items(), key=lambda _: random.random()))
    assert order(shuffled) == order(effects)
    assert set(order(effects)) == set(effects)
    gains = [effects[name].strain / effects[name].cost for name in order(effects)]
    assert gains == sorted(gains, reverse=True)


@given(st.integers(0, 200), st.integers(0, 220))
def test_the_least_number_is_found_in_few_steps(count: int, least: int) -> None:
    asked: list[int] = []

    def passes(number: int) -> bool:
        asked.append(number)
        return number >= least

    assert fewest(count, passes) == min(least, count)
    assert count not in asked  # keeping everything is the reference's precision
    assert len(asked) <= count.bit_length()


@given(st.lists(st.booleans(), max_size=60))
def test_where_more_may_fail_what_is_found_passes_all_the_same(passing: list[bool]) -> None:
    found = fewest(len(passing), passing.__getitem__)
    assert found == len(passing) or passing[found]


LAYERS = 6
ROWS = 12


def promised(budget: float, layers: int = LAYERS) -> tuple[Promise, list[Feeds]]:
    """Embeddings of some rows along the first axis, another axis for each layer, and what may be lost on them."""
    spec = ModelSpec(
        name="m",
        digest="",
        revision="main",
        architecture="A",
        family="bert",
        task="embeddings",
        parts=(Part(name="encoder", inputs=(), outputs=()),),
        max_length=1,
        vocab_size=1,
        pad_id=0,
    )
    examples = tuple(Example(texts=("x",), line=at + 1) for at in range(ROWS))
    questions = Questions(
        spec=spec,
        data=Dataset(path=Path("x"), examples=examples, skipped=(), digest=""),
        rows=[np.array([at], np.float32) for at in range(ROWS)],
        calls=tuple(Call(rows=tuple(range(at, at + 4))) for at in range(0, ROWS, 4)),
        collate=lambda items: {"rows": np.stack([item for item in items if isinstance(item, np.ndarray)])},
    )
    straight = np.eye(layers + 1, dtype=np.float32)[:1].repeat(4, axis=0)
    return Promise(questions=questions, budget=budget), [{"embedding": straight}] * 3


def turning(harm: Mapping[str, float]) -> Lowered:
    """A model each of whose layers, once lowered, turns embeddings towards an axis of its own."""

    @contextmanager
    def lowered(chosen: frozenset[str]) -> Iterator[Run]:
        turn = [1.0, *(amount if name in chosen else 0.0 for name, amount in harm.items())]
        yield lambda feeds: {"embedding": np.array([turn] * len(feeds["rows"]), np.float32)}

    return lowered


@settings(deadline=None, max_examples=20)  # a verdict takes a millisecond, and there are dozens
@given(
    st.lists(st.floats(0, 0.5), min_size=LAYERS, max_size=LAYERS),
    st.lists(st.integers(1, 9), min_size=LAYERS, max_size=LAYERS),
    st.sampled_from([1e-6, 0.004, 0.02, 1.0]),
)
def test_no_fewer_of_the_best_bargains_keep_the_promise(
    harms: list[float], costs: list[int], budget: float
) -> None:
    names = [f"layer {at}" for at in range(LAYERS)]
    promise, expected = promised(budget)
    lowered = turning(dict(zip(names, harms, strict=True)))
    search = Search(promise=promise, expected=expected, reference="own-graph", lowered=lowered)
    ordered, kept = search.bargains(dict(zip(names, costs, strict=True)))
    assert sorted(ordered) == names
    assert kept == LAYERS or search.passes(frozenset(ordered[kept:]))
    assert kept == 0 or not search.passes(frozenset(ordered[kept - 1 :]))


def test_a_layer_that_gives_nan_is_kept_first_whatever_it_costs() -> None:
    harm = {"dear": math.nan, "cheap": 0.3, "also dear": math.nan, "harmless": 0.0}
    promise, expected = promised(0.004, len(harm))
    search = Search(promise=promise, expected=expected, reference="own-graph", lowered=turning(harm))
    ordered, kept = search.bargains({"dear": 900, "cheap": 1, "also dear": 900, "harmless": 1})
    assert ordered == ("also dear", "dear", "cheap", "harmless")
    assert kept == 3


# A real graph.

# Each of these loses six to ten times 0.4 % by itself, the other layers at most 0.003 times that.
SENSITIVE = ("encoder.layer.1.attention.output.dense", "encoder.layer.0.attention.output.dense")


@pytest.mark.parametrize("planted", [SENSITIVE[:1], SENSITIVE])
def test_layers_that_eight_bits_ruin_are_found_first_and_they_are_enough(
    planted: Sequence[str], tmp_path: Path
) -> None:
    folder = tiny.with_outliers(tmp_path / "model", planted)
    checkpoint = families.open_checkpoint(str(folder))
    spec = families.describe(checkpoint, "embeddings")
    rng = np.random.default_rng(0)
    rows = (" ".join(rng.choice(tiny.WORDS, size=int(rng.integers(2, 20)))) for _ in range(24))
    examples = tuple(Example(texts=(text,), line=at + 1) for at, text in enumerate(rows))
    data = Dataset(path=Path("rows.txt"), examples=examples, skipped=(), digest="")
    promise = Promise(questions=questions_of(data, spec, PROFILE, folder), budget=BUDGET)
    with running(families.write(checkpoint, spec, "encoder"), PROFILE) as session:
        expected = promise.questions.ask(session)
    calibration = calibrate(checkpoint, spec, promise.questions, use_cache=False)
    with switched(checkpoint, spec, calibration, promise, "onnxruntime") as (lowered, costs):
        assert set(costs) == set(graphs.layers(families.write(checkpoint, spec, "encoder")))
        search = Search(promise=promise, expected=expected, reference="own-graph", lowered=lowered)
        ordered, kept = search.bargains(costs)
        assert not search.passes(frozenset(ordered))
    assert {layer.removesuffix("/MatMul") for layer in ordered[:kept]} == set(planted)
