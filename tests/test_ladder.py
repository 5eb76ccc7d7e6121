"""What a climb tries, in which order, what it leaves and why: graphs are real, speeds are planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import tiny

from alula import families, graphs
from alula.bench import BenchRow, Measured, Ratio, RatioRow
from alula.bundles import Draft
from alula.calibrate import calibrate
from alula.core.check import Check
from alula.core.engine import Engine, Plan
from alula.core.errors import CompileError, DeviceLostError, EngineError, InputError, RunError
from alula.core.graph import Graph
from alula.core.profile import Profile, Range
from alula.core.progress import Note, Progress, Silent, quiet
from alula.data import Dataset, Example
from alula.engines import backend
from alula.evidence import gather
from alula.ladder import ATTEMPTS, Ladder, _spared
from alula.questions import Promise, questions_of
from alula.rungs import Candidate, Workshop

PROFILE = Profile({"batch": Range(1, 2, 8), "length": Range(2, 8, 32)})
HELD = Check(
    output="embedding",
    metric="cosine_distance_mean",
    samples=8,
    worst=0.001,
    mean=0.001,
    limit=0.004,
    higher_is_better=False,
    reference="own-graph",
)
BROKEN = replace(HELD, worst=0.02)


def candidate(precision: str, check: Check = HELD) -> Candidate:
    graph = Graph(
        path=Path(precision), digest="", opset=23, nodes=1, precision=precision, inputs=(), outputs=()
    )
    plan = Plan(profile=PROFILE)
    engine = Engine(backend="fake", target="fake 1", path=Path(precision), graph=graph, plan=plan)
    return Candidate(
        precision=precision, graphs={"encoder": graph}, engines={"encoder": engine}, checks=(check,)
    )


def measured(candidates: Sequence[Candidate], times: Mapping[str, float], spread: float = 0.01) -> Measured:
    """Candidates that are this many times as fast as the first, surely so within the spread."""
    rows = [
        BenchRow(
            engine="fake",
            precision=c.precision,
            shape="1x8",
            runs=60,
            p50_ms=10 / times[c.precision],
            p90_ms=None,
            p99_ms=None,
            items_per_s=1.0,
        )
        for c in candidates
    ]
    ratios = []
    for c in candidates[1:]:
        fast = times[c.precision]
        ratio = Ratio(median=fast, low=fast - spread, high=fast + spread, rounds=15)
        baseline = candidates[0].precision
        ratios.append(RatioRow(shape="1x8", engine=c.precision, baseline=baseline, ratio=ratio))
    return Measured(rows=tuple(rows), ratios=tuple(ratios))


@pytest.mark.parametrize(
    ("fp32", "bf16", "int8", "times", "spread", "reason"),
    [
        (HELD, HELD, BROKEN, 2.0, 0.01, ""),
        (BROKEN, HELD, BROKEN, 2.0, 0.01, ""),
        (HELD, HELD, HELD, 2.0, 0.01, "not searched: int8 is within the limits"),
        (
            BROKEN,
            BROKEN,
            BROKEN,
            2.0,
            0.01,
            "not searched: not even the highest precision is within the limits",
        ),
        (HELD, HELD, BROKEN, 1.21, 0.01, "not searched: int8 itself is not surely faster than bf16"),
        (HELD, HELD, BROKEN, 1.5, 0.4, "not searched: int8 itself is not surely faster than bf16"),
        (HELD, BROKEN, BROKEN, 1.21, 0.01, ""),
        (HELD, BROKEN, BROKEN, 0.8, 0.01, "not searched: int8 itself is not surely faster than fp32"),
    ],
)
def test_layers_are_searched_only_where_the_result_can_win(
    fp32: Check, bf16: Check, int8: Check, times: float, spread: float, reason: str
) -> None:
    tried = [candidate("fp32", fp32), candidate("bf16", bf16), candidate("int8", int8)]
    speeds = measured(tried, {"fp32": 1.0, "bf16": 1.2, "int8": times}, spread)
    if spread > 0.1:
        assert speeds.ratios[0].ratio.low is not None
        speeds = replace(
            speeds, ratios=(measured(tried[:2], {"fp32": 1.0, "bf16": 1.2}).ratios[0], speeds.ratios[1])
        )
    assert _spared("int8-mixed", tried, speeds) == reason


def test_a_mixed_rung_is_searched_where_its_low_precision_was_not_tried() -> None:
    tried = [candidate("fp32"), candidate("int8", BROKEN)]
    assert _spared("fp16-mixed", tried, measured(tried, {"fp32": 1.0, "int8": 2.0})) == ""


# Climbs of a small encoder.


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed(Workshop):
    """A workshop where it is known how fast each precision is."""

    times: Mapping[str, float]

    def measure(self, candidates: Sequence[Candidate]) -> Measured:
        return measured(candidates, self.times)


@dataclass(slots=True)
class Told:
    """Progress that keeps what it was told, and is stopped by the user at one phase."""

    stop: str = "-"
    phases: list[str] = field(default_factory=list)

    @contextmanager
    def phase(self, what: str) -> Iterator[Note]:
        self.phases.append(what)
        if what.startswith(self.stop):
            raise KeyboardInterrupt
        yield quiet


@dataclass(kw_only=True, slots=True)
class Found(Ladder):
    """A climb whose search ends with these layers in this order, so many of them to keep."""

    layers: tuple[str, ...]
    count: int

    def _bargains(self, low: str) -> tuple[tuple[str, ...], int]:
        return self.layers, self.count


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Timed:
    """A small encoder that int8 ruins in two of its twelve layers."""
    folder = tiny.with_outliers(
        tmp_path_factory.mktemp("tiny") / "model", [name.removesuffix("/MatMul") for name in SENSITIVE]
    )
    checkpoint = families.open_checkpoint(str(folder))
    spec = families.describe(checkpoint)
    rng = np.random.default_rng(0)
    texts = (" ".join(rng.choice(tiny.WORDS, size=int(rng.integers(2, 20)))) for _ in range(24))
    examples = tuple(Example(texts=(text,), line=at + 1) for at, text in enumerate(texts))
    data = Dataset(path=Path("rows.txt"), examples=examples, skipped=(), digest="")
    promise = Promise(questions=questions_of(data, spec, PROFILE, folder), budget=0.004)
    return Timed(
        checkpoint=checkpoint,
        spec=spec,
        backend=backend("onnxruntime"),
        plan=Plan(profile=PROFILE),
        opset=None,
        draft=Draft(scratch=Path(), to=Path()),
        evidence=gather("own-graph", checkpoint, spec, PROFILE, promise),
        calibration=calibrate(checkpoint, spec, promise.questions, use_cache=False),
        times={"fp32": 1.0, "int8": 2.0, "int8-mixed": 1.5, "fp16": 0.5, "fp16-mixed": 0.6},
    )


@pytest.fixture
def promising(shop: Timed, tmp_path: Path) -> Callable[..., Timed]:
    """The workshop with another budget, or other speeds."""

    def make(budget: float, **times: float) -> Timed:
        for name in ("graphs", "engines"):
            (tmp_path / name).mkdir()
        (proved,) = shop.evidence
        assert proved.promise is not None
        asked = replace(proved, promise=replace(proved.promise, budget=budget))
        draft = Draft(scratch=tmp_path, to=tmp_path)
        return replace(shop, draft=draft, evidence=(asked,), times={**shop.times, **times})

    return make


ALL = ("fp32", "int8", "int8-mixed")
SENSITIVE = tuple(f"encoder.layer.{at}.attention.output.dense/MatMul" for at in (0, 1))
"""What int8 ruins by itself; it keeps the promise once both are kept."""


def sensitive_at(shop: Workshop, first: int) -> tuple[str, ...]:
    """All layers, those that int8 ruins from this place on."""
    others = [name for name in layers(shop) if name not in SENSITIVE]
    return (*others[:first], *SENSITIVE, *others[first:])


def layers(shop: Workshop) -> tuple[str, ...]:
    return graphs.layers(families.write(shop.checkpoint, shop.spec, "encoder"))


def test_a_climb_goes_down_and_mixes_last(promising: Callable[..., Timed]) -> None:
    told = Told()
    climbed = Ladder(workshop=promising(0.004), progress=told).climb(("fp32", "int8-mixed", "int8"))
    assert [c.precision for c in climbed.candidates] == list(ALL)
    assert [c.passed for c in climbed.candidates] == [True, False, True]
    assert not climbed.interrupted
    assert [phase for phase in told.phases if phase.startswith(("measure", "search"))] == [
        "measure fp32, int8",
        "search the layers to keep out of int8",
        "measure fp32, int8, int8-mixed",
    ]
    taken, rungs = climbed.choose()
    assert taken.precision == "int8-mixed"
    assert [(rung.precision, rung.taken, rung.reason.split(":")[0]) for rung in rungs] == [
        ("fp32", False, "int8-mixed is faster"),
        ("int8", False, rungs[1].reason.split(":")[0]),
        ("int8-mixed", True, "1.50 (1.49-1.51) times as fast as fp32"),
    ]
    assert rungs[1].reason.startswith("embedding cosine_distance_mean 0.0")
    assert rungs[2].kept == SENSITIVE


@pytest.mark.parametrize(
    ("budget", "fast", "reason"),
    [
        (0.004, 1.0, "not searched: int8 itself is not surely faster than fp32"),
        (-1.0, 2.0, "not searched: not even the highest precision is within the limits"),
    ],
)
def test_what_cannot_win_is_among_the_rungs_with_its_reason(
    budget: float, fast: float, reason: str, promising: Callable[..., Timed]
) -> None:
    told = Told()
    climbed = Ladder(workshop=promising(budget, int8=fast), progress=told).climb(ALL)
    assert not any(phase.startswith("search") for phase in told.phases)
    _, rungs = climbed.choose()
    assert (rungs[-1].precision, rungs[-1].passed, rungs[-1].taken) == ("int8-mixed", False, False)
    assert rungs[-1].reason == reason


def test_more_layers_are_kept_until_the_engine_keeps_the_promise(promising: Callable[..., Timed]) -> None:
    """The search went by ONNX Runtime's own rounding; here it stopped two layers too early."""
    shop, told = promising(0.004), Told()
    climbed = Found(workshop=shop, progress=told, layers=sensitive_at(shop, 0), count=0).climb(ALL)
    assert climbed.candidates[-1].passed
    assert climbed.candidates[-1].kept == SENSITIVE
    assert told.phases.count("write the int8-mixed graph") == 2
    assert sorted(path.name for path in (shop.draft.scratch / "engines").iterdir()) == [
        "encoder.onnxruntime.fp32",
        "encoder.onnxruntime.int8",
        "encoder.onnxruntime.int8-mixed",
    ]


def test_the_last_attempt_is_shown_with_its_failed_checks(promising: Callable[..., Timed]) -> None:
    shop, told = promising(0.004), Told()
    found = sensitive_at(shop, 8)
    climbed = Found(workshop=shop, progress=told, layers=found, count=0).climb(ALL)
    assert told.phases.count("write the int8-mixed graph") == ATTEMPTS
    taken, rungs = climbed.choose()
    assert taken.precision == "fp32"
    assert (rungs[-1].precision, rungs[-1].passed) == ("int8-mixed", False)
    assert rungs[-1].kept == tuple(sorted(found[:8]))
    assert rungs[-1].reason.startswith("embedding cosine_distance_mean")


@pytest.mark.parametrize(("count", "written"), [(12, 0), (11, 1)])
def test_a_search_that_keeps_everything_finds_nothing(
    count: int, written: int, promising: Callable[..., Timed]
) -> None:
    shop, told = promising(1e-12), Told()
    climbed = Found(workshop=shop, progress=told, layers=layers(shop), count=count).climb(ALL)
    assert told.phases.count("write the int8-mixed graph") == written
    _, rungs = climbed.choose()
    assert rungs[-1].reason == "all 12 layers would have to be kept out of int8"
    names = {path.name for path in (shop.draft.scratch / "graphs").iterdir()}
    assert not any("mixed" in name for name in names)


def test_nothing_to_keep_of_a_mixed_rung_alone_is_an_error(promising: Callable[..., Timed]) -> None:
    shop = promising(1e-12)
    ladder = Found(workshop=shop, progress=Silent(), layers=layers(shop), count=12)
    with pytest.raises(
        InputError, match="nothing to keep of int8-mixed: all 12 layers would have to be kept"
    ):
        ladder.climb(("int8-mixed",))


def test_an_interrupt_leaves_what_was_finished_and_names_the_rest(promising: Callable[..., Timed]) -> None:
    climbed = Ladder(workshop=promising(0.004), progress=Told("compile int8")).climb(ALL)
    assert climbed.interrupted
    taken, rungs = climbed.choose()
    assert taken.precision == "fp32"
    assert [(rung.precision, rung.reason) for rung in rungs] == [
        ("fp32", "the only one tried"),
        ("int8", "interrupted before it was finished"),
        ("int8-mixed", "interrupted before it was finished"),
    ]


def test_an_interrupt_before_anything_was_finished_is_one(promising: Callable[..., Timed]) -> None:
    with pytest.raises(KeyboardInterrupt):
        Ladder(workshop=promising(0.004), progress=Told("compile fp32")).climb(ALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusing(Timed):
    """A workshop whose compiler takes no graph of these precisions."""

    refused: tuple[str, ...]
    error: type[EngineError] = CompileError

    def candidate(self, precision: str, progress: Progress, keep: frozenset[str] = frozenset()) -> Candidate:
        if precision in self.refused:
            raise self.error(f"no kernel for {precision}")
        return Timed.candidate(self, precision, progress, keep)


def refusing(shop: Timed, *refused: str, error: type[EngineError] = CompileError) -> Refusing:
    known = {name: getattr(shop, name) for name in Timed.__dataclass_fields__}
    return Refusing(**known, refused=refused, error=error)


@pytest.mark.parametrize("error", [CompileError, RunError])
def test_what_cannot_be_compiled_or_run_is_a_rung_that_says_so_beside_one_that_can(
    error: type[EngineError], promising: Callable[..., Timed]
) -> None:
    shop = refusing(promising(0.004), "int8", error=error)
    climbed = Ladder(workshop=shop, progress=Told()).climb(("fp32", "int8"), {"bf16": "as it is"})
    taken, rungs = climbed.choose()
    assert taken.precision == "fp32"
    assert [(rung.precision, rung.reason) for rung in rungs] == [
        ("fp32", "the only one tried"),
        ("bf16", "as it is"),
        ("int8", "failed: no kernel for int8"),
    ]


def test_where_the_first_cannot_be_compiled_there_is_nothing_to_keep(
    promising: Callable[..., Timed],
) -> None:
    shop = refusing(promising(0.004), "fp32")
    with pytest.raises(CompileError, match="no kernel for fp32"):
        Ladder(workshop=shop, progress=Told()).climb(("fp32", "int8"))


def test_a_lost_device_ends_the_climb(promising: Callable[..., Timed]) -> None:
    shop = refusing(promising(0.004), "int8", error=DeviceLostError)
    with pytest.raises(DeviceLostError, match="no kernel for int8"):
        Ladder(workshop=shop, progress=Told()).climb(("fp32", "int8"))


def test_what_cannot_be_compiled_is_not_looked_for_in_a_folder_that_is_gone(
    promising: Callable[..., Timed], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = promising(0.004)

    def refuse(graph: Graph, plan: Plan, to: Path, *, note: Note = quiet) -> Engine:
        raise CompileError(f"fake 1 cannot compile {graph.path} at node 'a'")

    monkeypatch.setattr(shop.backend, "compile", refuse)
    with pytest.raises(CompileError, match=r"^fake 1 cannot compile the fp32 graph at node 'a'$"):
        shop.compiled("fp32", Silent())
