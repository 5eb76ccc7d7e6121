"""From options, traffic and defaults to a plan; what cannot be obeyed here is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import lines
import pytest
import tiny

from alula import families
from alula.core.engine import Plan, Traits
from alula.core.errors import InputError
from alula.core.model import ModelSpec, Part
from alula.core.profile import Profile, Range
from alula.core.progress import Note, Silent, quiet
from alula.core.tensor import TensorSpec
from alula.planning import (
    Wanted,
    grids,
    opset_here,
    plan_of,
    precisions_here,
    range_of,
    refuse_disobeyed,
    seen_in,
)

IDS = TensorSpec(name="input_ids", dtype="int64", shape=("batch", "length"))
OUT = TensorSpec(name="embedding", dtype="float32", shape=("batch", 4))
TEXTS = ModelSpec(
    name="tiny",
    digest="",
    revision="main",
    architecture="BertModel",
    family="bert",
    task="embeddings",
    parts=(Part(name="encoder", inputs=(IDS,), outputs=(OUT,)),),
    max_length=256,
    vocab_size=99,
    pad_id=0,
)
LINE = TensorSpec(name="x", dtype="float32", shape=("batch", 3, 48, "width"))
LINES = replace(
    TEXTS,
    task="text-recognition",
    parts=(Part(name="encoder", inputs=(LINE,), outputs=(OUT,)),),
    max_length=0,
    vocab_size=0,
)
OLD = Traits(opset=17, lacks={"bf16": "TensorRT 8.6 has no bf16", "--strip-weights": "TensorRT 8.6 cannot"})
NO_GPU = Traits(cannot_run="there is no CUDA GPU here")


def sizes(**axes: tuple[int, int, int]) -> dict[str, Range]:
    return {axis: Range(*ends) for axis, ends in axes.items()}


class Told(Silent):
    """Remembers the phases."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    @contextmanager
    def phase(self, what: str) -> Iterator[Note]:
        self.phases.append(what)
        yield quiet


# Profiles.


def test_without_options_the_defaults_hold_cut_to_what_the_model_takes() -> None:
    plan = plan_of(TEXTS, {}, Wanted())
    assert plan == Plan(profile=Profile(sizes(batch=(1, 8, 64), length=(2, 128, 256))))


def test_one_profile_is_completed_by_options_and_defaults() -> None:
    wanted = Wanted(profiles=(sizes(length=(1, 64, 128)),))
    assert plan_of(TEXTS, sizes(batch=(1, 2, 4)), wanted).profiles == (
        Profile(sizes(batch=(1, 2, 4), length=(1, 64, 128))),
    )
    assert str(plan_of(TEXTS, {}, wanted).profile) == "batch 1:8:64, length 1:64:128"


def test_several_profiles_are_tuned_for_and_their_hull_is_taken() -> None:
    alone, many = sizes(batch=(1, 1, 1), length=(1, 64, 256)), sizes(batch=(1, 8, 64), length=(16, 64, 128))
    plan = plan_of(TEXTS, {}, Wanted(profiles=(alone, many)))
    assert plan.tuned == (Profile(alone), Profile(many))
    assert str(plan.profile) == "batch 1:1:64, length 1:64:256"


def test_what_is_given_for_an_axis_that_every_profile_replaces_is_a_profile_of_its_own() -> None:
    """As in `--batch 1:8:64 --length 16:128:256 --profile batch=1:1:1,length=1:64:128`: nothing given is ignored."""
    alone = sizes(batch=(1, 1, 1), length=(1, 64, 128))
    given = sizes(batch=(1, 8, 64), length=(16, 128, 256))
    assert plan_of(TEXTS, given, Wanted(profiles=(alone,))).tuned == (Profile(given), Profile(alone))
    # Here it only completes.
    plan = plan_of(TEXTS, sizes(batch=(1, 2, 4)), Wanted(profiles=(sizes(length=(1, 8, 16)),)))
    assert str(plan.profile) == "batch 1:2:4, length 1:8:16"


def test_a_profile_given_twice_is_built_once() -> None:
    one = sizes(batch=(1, 1, 1), length=(1, 64, 128))
    assert plan_of(TEXTS, {}, Wanted(profiles=(one, dict(reversed(one.items()))))).tuned == ()


@pytest.mark.parametrize(
    ("axes", "profiles", "message"),
    [
        ({"depth": Range(1, 1, 1)}, (), "no axis 'depth'; tiny has batch, length"),
        ({}, ({"depth": Range(1, 1, 1)},), "no axis 'depth'; tiny has batch, length"),
        (
            {},
            ({"batch": Range(1, 1, 1)}, {"length": Range(1, 1, 257)}),
            "axis 'length' up to 257; tiny takes 256 tokens at most",
        ),
    ],
)
def test_axes_that_the_model_has_not_are_refused_by_name(
    axes: Mapping[str, Range], profiles: tuple[Mapping[str, Range], ...], message: str
) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        plan_of(TEXTS, axes, Wanted(profiles=profiles))


def test_of_a_model_of_one_size_no_axis_is_asked_for() -> None:
    fixed = replace(LINE, shape=(1, 3, 48, 320))
    spec = replace(LINES, parts=(Part(name="encoder", inputs=(fixed,), outputs=(OUT,)),))
    with pytest.raises(
        InputError, match=r"no axis 'batch'; tiny has none that is open: all of its sizes are fixed$"
    ):
        plan_of(spec, sizes(batch=(1, 1, 1)), Wanted())


def test_an_axis_without_usual_sizes_must_be_given() -> None:
    depth = replace(LINE, shape=("batch", 3, "depth", "width"))
    spec = replace(LINES, parts=(Part(name="encoder", inputs=(depth,), outputs=(OUT,)),))
    with pytest.raises(
        InputError, match=r"^axis 'depth' of tiny has no usual sizes.*; give --axis depth=MIN:OPT:MAX$"
    ):
        plan_of(spec, {}, Wanted())
    assert str(plan_of(spec, sizes(depth=(1, 2, 3)), Wanted()).profile.axes["depth"]) == "1:2:3"


def test_settings_are_in_the_plan() -> None:
    wanted = Wanted(workspace_bytes=1 << 30, level=0, time_limit_s=60, portable=True, strip_weights=True)
    plan = plan_of(TEXTS, {}, wanted)
    assert (plan.workspace_bytes, plan.level, plan.time_limit_s) == (1 << 30, 0, 60)
    assert plan.portable
    assert plan.strip_weights
    assert wanted.settings == ("--workspace", "--level", "--time-limit", "--portable", "--strip-weights")


# Traffic.


@pytest.mark.parametrize(
    ("seen", "most", "expected"),
    [
        ([5, 9, 30], 256, (2, 16, 32)),  # 5 rounds down to 0, and the defaults begin at 2
        ([17, 18, 40, 41], 256, (16, 32, 48)),  # the median is 29
        ([16, 16, 16], 256, (16, 16, 16)),
        ([3], 256, (2, 8, 8)),
        ([250, 300, 299], 250, (248, 250, 250)),  # no more than the model takes
        ([1], 1, (1, 1, 1)),
    ],
)
def test_a_range_reaches_from_the_smallest_seen_over_the_median_to_the_largest(
    seen: Sequence[int], most: int, expected: tuple[int, int, int]
) -> None:
    assert range_of(seen, Range(2, 128, 512), most) == Range(*expected)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("tiny") / "model")


def test_traffic_is_tokenised_and_what_it_shows_is_told(model: Path, tmp_path: Path) -> None:
    traffic = tmp_path / "traffic.jsonl"
    # Two special tokens beside the words: 18, 26, 26, and a row that is cut to the 64 tokens of the model.
    rows = [{"text": " ".join(["cat"] * words)} for words in (16, 24, 24, 500)]
    traffic.write_text("\n".join(map(json.dumps, rows)))
    spec, progress = families.describe(families.open_checkpoint(str(model))), Told()
    seen = seen_in(traffic, spec, model, progress)
    assert seen == {"length": Range(16, 32, 64)}
    assert progress.phases == [
        "read the traffic in traffic.jsonl",
        "profile from 4 rows of traffic.jsonl: length 16:32:64",
    ]
    assert str(plan_of(spec, {}, Wanted(), seen).profile) == "batch 1:8:64, length 16:32:64"
    # What is given by name is obeyed.
    given = plan_of(spec, sizes(length=(1, 2, 3)), Wanted(), seen)
    assert str(given.profile) == "batch 1:8:64, length 1:2:3"


def test_pictures_of_lines_show_their_widths(tmp_path: Path) -> None:
    made = lines.lines(tmp_path / "lines", 9)
    seen = seen_in(tmp_path / "lines", replace(LINES, labels=("", "a")), tmp_path, Silent())
    assert list(seen) == ["width"]
    assert 32 <= seen["width"].min < seen["width"].opt < seen["width"].max
    assert len(made) == 9


def test_rows_of_a_model_whose_sizes_are_fixed_show_nothing(tmp_path: Path) -> None:
    lines.lines(tmp_path / "lines", 2)
    fixed = replace(LINES, labels=("", "a"), parts=(_fixed(),))
    with pytest.raises(InputError, match=r"^--profile-from .*lines: tiny has no axis that its rows decide$"):
        seen_in(tmp_path / "lines", fixed, tmp_path, Silent())


def _fixed() -> Part:
    return Part(name="encoder", inputs=(replace(LINE, shape=("batch", 3, 48, 320)),), outputs=(OUT,))


# What an engine, or the version of it that is here, has not.


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ("--workspace", {"workspace_bytes": 1}),
        ("--level", {"level": 0}),
        ("--time-limit", {"time_limit_s": 1.0}),
        ("--portable", {"portable": True}),
        ("--strip-weights", {"strip_weights": True}),
    ],
)
def test_a_cpu_engine_refuses_what_it_cannot_obey_by_name(
    engine: str, option: str, wanted: dict[str, Any]
) -> None:
    with pytest.raises(InputError) as error:
        refuse_disobeyed(engine, {}, Wanted(**wanted), Traits())
    assert str(error.value) == (
        f"{option} is not for {engine}, which has nothing like it; it is for tensorrt, tensorrt-rtx"
    )
    refuse_disobeyed("tensorrt", {}, Wanted(**wanted), Traits())


def test_a_cpu_engine_takes_one_profile() -> None:
    refuse_disobeyed("openvino", {}, Wanted(profiles=(sizes(batch=(1, 1, 1)),)), Traits())
    several = Wanted(profiles=(sizes(batch=(1, 1, 1)), sizes(batch=(8, 8, 8))))
    with pytest.raises(
        InputError, match=r"^2 profiles; openvino takes one, and is as fast anywhere within it: "
    ):
        refuse_disobeyed("openvino", {}, several, Traits())
    one = Wanted(profiles=(sizes(batch=(1, 1, 1)),))
    with pytest.raises(InputError, match=r"^2 profiles; openvino takes one"):
        refuse_disobeyed("openvino", sizes(batch=(1, 8, 64)), one, Traits())
    refuse_disobeyed("openvino", sizes(length=(1, 8, 64)), one, Traits())
    refuse_disobeyed("tensorrt", {}, several, Traits())


def test_what_this_version_cannot_obey_or_compile_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match=r"^--strip-weights: TensorRT 8\.6 cannot$"):
        refuse_disobeyed("tensorrt", {}, Wanted(strip_weights=True), OLD)
    with pytest.raises(InputError, match=r"^nothing can be compiled for tensorrt here: there is no GPU$"):
        refuse_disobeyed("tensorrt", {}, Wanted(), Traits(cannot_compile="there is no GPU"))


def test_a_precision_that_this_version_lacks_is_left_out_or_refused_with_the_reason() -> None:
    assert precisions_here("tensorrt", "auto", Traits())[:3] == ("fp32", "bf16", "fp16")
    assert "bf16" not in precisions_here("tensorrt", "auto", OLD)
    assert precisions_here("tensorrt", "fp16, fp32", OLD) == ("fp32", "fp16")
    with pytest.raises(InputError, match=r"^precision 'bf16': TensorRT 8\.6 has no bf16$"):
        precisions_here("tensorrt", "fp32,bf16", OLD)
    with pytest.raises(InputError, match=r"^precision 'mixed': tensorrt has none of these here$"):
        precisions_here("tensorrt", "mixed", Traits(lacks={"fp16-mixed": "", "int8-mixed": ""}))


@pytest.mark.parametrize("wanted", ["auto", "fp32,fp16", "mixed", "int8-mixed", "fp16-mixed"])
def test_where_nothing_runs_one_precision_must_be_named(wanted: str) -> None:
    with pytest.raises(InputError) as error:
        precisions_here("tensorrt-rtx", wanted, NO_GPU)
    assert str(error.value) == (
        f"precision {wanted!r} is chosen by measurement, and nothing that is compiled for tensorrt-rtx runs here: "
        "there is no CUDA GPU here; name one precision, such as --precision fp16"
    )


@pytest.mark.parametrize(("wanted", "found"), [("fp32", "fp32"), (" fp16", "fp16"), ("int8,int8", "int8")])
def test_one_precision_is_compiled_where_nothing_runs(wanted: str, found: str) -> None:
    assert precisions_here("tensorrt-rtx", wanted, NO_GPU) == (found,)


def test_the_opset_is_what_this_version_reads_unless_a_lower_one_is_asked_for() -> None:
    assert opset_here("tensorrt", None, OLD) == 17
    assert opset_here("tensorrt", 17, OLD) == 17
    assert opset_here("openvino", None, Traits()) is None
    assert opset_here("openvino", 24, Traits()) == 24
    with pytest.raises(InputError, match=r"^--opset 20: the tensorrt that is here reads 17 at most$"):
        opset_here("tensorrt", 20, OLD)
    with pytest.raises(InputError, match=r"^opset 25 is not one of 17\.\.24$"):
        opset_here("tensorrt", 25, Traits())


# Models that write.


DECODER = replace(
    TEXTS,
    task="text-generation",
    parts=(
        Part(
            name="decoder",
            inputs=(
                IDS,
                TensorSpec(name="attention_mask", dtype="int64", shape=("batch", "total")),
                TensorSpec(name="answers", dtype="int64", shape=("answers",)),
                TensorSpec(name="past.0.key", dtype="float32", shape=("batch", 1, "past", 4)),
            ),
            outputs=(OUT,),
        ),
    ),
    max_length=4096,
)


def test_a_decoder_on_a_gpu_has_profiles_for_steps_and_for_prompts() -> None:
    """Its past has room for all that it may hold, and new tokens lie beside it."""
    plan = plan_of(DECODER, {}, Wanted(), engine="tensorrt")
    step, prompt = plan.profiles
    assert step == Profile(
        sizes(
            answers=(1, 1, 1), batch=(1, 1, 8), length=(1, 1, 1), past=(64, 512, 2048), total=(65, 513, 2049)
        )
    )
    assert prompt == Profile(
        sizes(
            answers=(1, 1, 1),
            batch=(1, 1, 1),
            length=(1, 128, 256),
            past=(64, 512, 2048),
            total=(65, 640, 2304),
        )
    )
    assert plan.profile.holds == 2048
    assert len(plan_of(DECODER, {}, Wanted(), engine="openvino").profiles) == 1


def test_a_page_on_a_gpu_is_as_large_as_its_checkpoint_has_it_within_a_bound() -> None:
    """HunyuanOCR 1.0 and 1.5, and a small one."""
    tuned = [
        str(grids(least, most, step)["across"])
        for least, most, step in ((512**2, 2048**2, 32), (512**2, 4096**2, 32), (16**2, 24**2, 8))
    ]
    assert tuned == ["2:64:176", "2:90:176", "2:4:18"]


def test_a_vision_part_is_tuned_once_where_only_steps_and_prompts_differ() -> None:
    page = TensorSpec(name="patches", dtype="float32", shape=("down", "across", 12))
    vision = Part(name="vision", inputs=(page,), outputs=(OUT,))
    spec = replace(DECODER, parts=(vision, *DECODER.parts), image_id=5, max_length=32768)
    plan = plan_of(spec, {}, Wanted(), grids(512**2, 2048**2, 32), "tensorrt")
    assert plan.of(vision).profiles == (Profile(sizes(across=(2, 64, 176), down=(2, 64, 176))),)
    assert len(plan.of(spec.part("decoder")).profiles) == 2
    assert plan.profile.holds == 8192, "a large page and its answer"
    assert plan.profile.largest(("down", "across")) == 176 * 176
    assert plan.of(spec.part("decoder")).profile.largest(("down", "across")) == 0
    narrow = Wanted(profiles=(sizes(down=(2, 4, 8)), sizes(across=(2, 4, 6))))
    found = plan_of(spec, {}, narrow, grids(512**2, 2048**2, 32), "tensorrt").of(vision)
    assert found.profile.largest(("down", "across")) == 176 * 8


def test_profiles_that_are_given_take_the_place_of_steps_and_prompts() -> None:
    given = Wanted(profiles=(sizes(length=(1, 1, 1), total=(16, 40, 48)),))
    [only] = plan_of(DECODER, {}, given, engine="tensorrt").profiles
    assert only.axes["past"] == Range(48, 48, 48), "no wider than the largest"
    assert only.axes["total"] == Range(49, 49, 49)
    fixed = sizes(batch=(1, 1, 1), length=(1, 1, 64), total=(1024, 1024, 1024))
    [one] = plan_of(DECODER, {}, Wanted(profiles=(fixed,)), engine="tensorrt").profiles
    assert one.axes["past"] == Range(1024, 1024, 1024), "a cache of one width"
    assert one.axes["total"] == Range(1025, 1025, 1088)
    [single] = plan_of(DECODER, sizes(length=(1, 1, 1)), Wanted(), engine="tensorrt").profiles
    assert single.axes["length"] == Range(1, 1, 1)
