from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from alula.bundles import Bundle, Manifest, Rung, Stored, writing
from alula.core.check import Check
from alula.core.engine import Engine, Plan
from alula.core.errors import InputError, ManifestError
from alula.core.graph import Graph
from alula.core.model import ModelSpec, Part
from alula.core.profile import Profile, Range, hull
from alula.core.tensor import TensorSpec

IDS = TensorSpec(name="input_ids", dtype="int64", shape=("batch", "length"))
OUT = TensorSpec(name="embedding", dtype="float32", shape=("batch", 4))
PART = Part(name="encoder", inputs=(IDS,), outputs=(OUT,))
SPEC = ModelSpec(
    name="tiny",
    digest="d" * 64,
    revision="main",
    architecture="BertModel",
    family="bert",
    task="embeddings",
    parts=(PART,),
    max_length=16,
    vocab_size=99,
    pad_id=0,
    pooling="mean",
    labels=("a", "b"),
)
PASSED = Check(
    output="embedding",
    metric="cosine",
    samples=8,
    worst=0.9999,
    mean=1.0,
    limit=0.999,
    higher_is_better=True,
    reference="pytorch",
)
STORED = Stored(
    reference="pytorch",
    feeds=({"input_ids": np.ones((2, 3), np.int64)},),
    outputs=({"embedding": np.ones((2, 4), np.float32)},),
)


PLAN = Plan(profile=Profile({"batch": Range(1, 2, 4), "length": Range(1, 8, 16)}))


def make(
    to: Path,
    checks: tuple[Check, ...] = (PASSED,),
    content: str = "graph",
    plan: Plan = PLAN,
    spec: ModelSpec = SPEC,
) -> Bundle:
    with writing(to) as draft:
        path = draft.graph_path("encoder", "fp32")
        path.write_text(content)
        graph = Graph(
            path=path,
            digest="g",
            opset=23,
            nodes=7,
            precision="fp32",
            inputs=PART.inputs,
            outputs=PART.outputs,
        )
        folder = draft.engine_path("encoder", "fake")
        folder.mkdir()
        (folder / "engine.json").write_text("{}")
        engine = Engine(backend="fake", target="fake 1", path=folder, graph=graph, plan=plan)
        manifest = Manifest(
            model=spec,
            source="tiny",
            graphs={"encoder.fp32": graph},
            engines={"encoder": engine},
            rungs=(
                Rung(
                    precision="fp32",
                    passed=True,
                    p50_ms=1.0,
                    shape="1x8",
                    taken=True,
                    reason="asked for",
                ),
            ),
            files=(),
            built_on={"cpu": "test"},
        )
        draft.finish(manifest, checks, [{"engine": "fake", "p50_ms": 1.0}], STORED)
    return Bundle.open(to)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make(tmp_path / "b")


def test_what_was_written_is_read_back_equal(bundle: Bundle) -> None:
    assert bundle.model == SPEC
    assert bundle.checks == (PASSED,)
    assert bundle.verified
    assert bundle.timings == ({"engine": "fake", "p50_ms": 1.0},)
    engine = bundle.engine("encoder")
    assert engine.graph.path == bundle.root / "graphs" / "encoder.fp32.onnx"
    assert engine.plan.profile.axes["length"] == Range(1, 8, 16)
    assert bundle.stored.feeds[0]["input_ids"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert bundle.stored.reference == "pytorch"


SMALL = Profile({"batch": Range(1, 1, 1), "length": Range(1, 4, 16)})
LARGE = Profile({"batch": Range(1, 4, 8), "length": Range(2, 8, 8)})
TUNED = Plan(
    profile=hull((SMALL, LARGE)),
    tuned=(SMALL, LARGE),
    workspace_bytes=4 << 30,
    level=0,
    time_limit_s=1200.0,
    portable=True,
    strip_weights=True,
)


@pytest.mark.parametrize("plan", [PLAN, TUNED, replace(PLAN, level=3)])
def test_the_whole_plan_is_kept(tmp_path: Path, plan: Plan) -> None:
    assert make(tmp_path / "b", plan=plan).engine("encoder").plan == plan


def test_a_bundle_from_before_plans_had_settings_is_read(bundle: Bundle) -> None:
    raw = json.loads((bundle.root / "manifest.json").read_text())
    assert raw["engines"]["encoder"].keys() == {"backend", "target", "path", "graph", "profile"}
    assert bundle.engine("encoder").plan.profiles == (PLAN.profile,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"profiles": [{"batch": [1, 1, 1]}]}, "profiles: have other axes than the profile, batch, length"),
        (
            {"profiles": [{"batch": [1, 1, 1], "length": [1, 4, 32]}]},
            "profiles: span batch 1:1:1, length 1:4:32, and the profile is batch 1:1:8, length 1:4:16",
        ),
        (
            {"profiles": [{"batch": [1, 1], "length": [1, 4, 32]}]},
            r"profiles\[0\].batch: is \[1, 1\], expected three",
        ),
        ({"settings": {"level": "3"}}, "settings.level: is str, expected int"),
        ({"settings": {"portable": 1}}, "settings.portable: is int, expected bool"),
        ({"settings": {"time_limit_s": None}}, "settings.time_limit_s: is NoneType, expected float"),
    ],
)
def test_a_plan_that_does_not_add_up_is_refused_by_field(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = make(tmp_path / "b", plan=TUNED).root / "manifest.json"
    raw = json.loads(path.read_text())
    raw["engines"]["encoder"].update(change)
    path.write_text(json.dumps(raw))
    with pytest.raises(InputError, match=f"manifest.json: engines.encoder.{message}"):
        Bundle.open(tmp_path / "b")


def test_the_layout_is_the_agreed_one(bundle: Bundle) -> None:
    names = {path.relative_to(bundle.root).as_posix() for path in bundle.root.rglob("*") if path.is_file()}
    assert names == {
        "manifest.json",
        "checks.json",
        "timings.json",
        "reference.npz",
        "graphs/encoder.fp32.onnx",
        "engines/encoder.fake/engine.json",
    }


@pytest.mark.parametrize(
    "name", ["graphs/encoder.fp32.onnx", "engines/encoder.fake/engine.json", "checks.json", "reference.npz"]
)
def test_a_file_that_is_missing_cut_short_or_changed_is_named(bundle: Bundle, name: str) -> None:
    path = bundle.root / name
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(InputError, match=f"{name}: was changed since the bundle was built"):
        Bundle.open(bundle.root)
    path.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=f"{name}: has {len(whole) - 1} bytes, expected {len(whole)}"):
        Bundle.open(bundle.root)
    path.unlink()
    with pytest.raises(InputError, match=f"{name}: is missing"):
        Bundle.open(bundle.root)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema: is version 2; this package reads 1"),
        ({"schema": True}, "schema: is bool, expected int"),
        ({"files": [{"path": "x", "bytes": "1", "sha256": ""}]}, r"files\[0\].bytes: is str, expected int"),
        ({"rungs": 3}, "rungs: is int, expected list"),
    ],
)
def test_manifest_errors_name_file_and_field(bundle: Bundle, change: dict[str, object], message: str) -> None:
    path = bundle.root / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=message):
        Bundle.open(bundle.root)


def test_a_file_list_that_leads_out_or_leaves_out_is_refused(bundle: Bundle) -> None:
    path = bundle.root / "manifest.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps({**raw, "files": [*raw["files"], {"path": "../x", "bytes": 1, "sha256": ""}]}))
    with pytest.raises(InputError, match=r"files: '\.\./x' leads out of the bundle"):
        Bundle.open(bundle.root)
    for index, record in enumerate(raw["files"]):
        left = [*raw["files"][:index], *raw["files"][index + 1 :]]
        path.write_text(json.dumps({**raw, "files": left}))
        with pytest.raises(InputError, match=f"files: '{record['path']}' is not listed"):
            Bundle.open(bundle.root)


def test_what_verify_renews_is_not_part_of_what_is_served(bundle: Bundle) -> None:
    again = bundle.with_checks([]).with_timings([])
    assert again.manifest.files != bundle.manifest.files
    assert again.manifest.identity == bundle.manifest.identity
    other = replace(bundle.manifest, model=replace(bundle.model, max_length=8))
    assert other.identity != bundle.manifest.identity


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    make(tmp_path / "real", content="old")
    (tmp_path / "link").symlink_to("real")
    made = make(tmp_path / "link", content="new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "graphs" / "encoder.fp32.onnx").read_text() == "new"
    made.with_checks([])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_a_second_writer_of_the_same_bundle_is_refused(bundle: Bundle) -> None:
    with writing(bundle.root) as draft:
        with pytest.raises(InputError, match="another process is writing it"):
            make(bundle.root)
        with pytest.raises(InputError, match="another process is writing it"):
            bundle.with_checks([])
        draft.to = draft.to.with_name("aside")
        (draft.scratch / "manifest.json").write_text("{}")
    assert (bundle.root.parent / "aside").is_dir()
    assert Bundle.open(bundle.root).verified


def test_readers_never_find_the_bundle_missing_or_half_replaced(bundle: Bundle) -> None:
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            bundle.with_checks([PASSED])

    with ThreadPoolExecutor(1) as threads:
        writer = threads.submit(write)
        try:
            for _ in range(200):
                assert (bundle.root / "manifest.json").is_file()
        finally:
            stop.set()
        writer.result()


def test_what_a_dead_process_left_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    dead = tmp_path / ".b.4194303.building"
    living = tmp_path / f".b.{os.getppid()}.building"
    for left in (dead, living):
        left.mkdir()
    make(tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == [living.name, "b"]


def test_end_tokens_and_an_axis_that_may_be_empty_are_kept_and_an_older_bundle_has_none(
    bundle: Bundle,
) -> None:
    raw = json.loads(json.dumps(bundle.manifest.to_json()))
    axes = {"batch": Range(1, 1, 4), "past": Range(0, 3, 7, least=0)}
    raw["model"] |= {"end_ids": [3, 5], "start_id": 0}
    raw["engines"]["encoder"]["profile"] = {axis: [s.min, s.opt, s.max] for axis, s in axes.items()}
    read = Manifest.parse(raw, bundle.root)
    assert (read.model.end_ids, read.model.start_id) == ((3, 5), 0)
    assert read.answering.plan.profile == Profile(axes)
    del raw["model"]["end_ids"], raw["model"]["start_id"]
    read = Manifest.parse(raw, bundle.root)
    assert (read.model.end_ids, read.model.start_id) == ((), -1)
    raw["model"]["end_ids"] = [3, "</s>"]
    with pytest.raises(ManifestError, match=r"model.end_ids\[1\]: is str, expected int"):
        Manifest.parse(raw, bundle.root)


def test_a_profile_out_of_order_is_named_by_its_path(bundle: Bundle) -> None:
    path = bundle.root / "manifest.json"
    raw = json.loads(path.read_text())
    raw["engines"]["encoder"]["profile"]["batch"] = [4, 2, 1]
    path.write_text(json.dumps(raw))
    with pytest.raises(InputError, match=r"engines.encoder.profile.batch: need 1 <= min <= opt <= max"):
        Bundle.open(bundle.root)


def test_a_folder_that_is_no_bundle_is_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not a bundle .* alula build MODEL"):
        Bundle.open(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        Bundle.open(tmp_path / "nowhere")


def test_a_folder_of_bundles_names_them(bundle: Bundle) -> None:
    with pytest.raises(InputError, match=f"is no bundle and has some in it; name one of them: {bundle.root}"):
        Bundle.open(bundle.root.parent)


def test_a_nan_survives_the_file_and_does_not_pass(tmp_path: Path) -> None:
    bundle = make(tmp_path / "b", checks=(replace(PASSED, worst=float("nan")),))
    assert "NaN" not in (bundle.root / "checks.json").read_text()
    assert np.isnan(bundle.checks[0].worst)
    assert not bundle.verified


def test_checks_against_the_own_graph_alone_do_not_verify(tmp_path: Path) -> None:
    assert not make(tmp_path / "b", checks=(replace(PASSED, reference="own-graph"),)).verified
    assert not make(tmp_path / "c", checks=()).verified


def test_new_checks_and_timings_replace_the_old_and_the_bundle_stays_whole(bundle: Bundle) -> None:
    failed = replace(PASSED, worst=0.5)
    again = bundle.with_checks([failed]).with_timings([{"engine": "torch", "p50_ms": 3.0}])
    assert again.checks == (failed,)
    assert again.timings[0]["engine"] == "torch"
    assert not Bundle.open(bundle.root).verified


class InterruptedHereError(Exception):
    pass


@pytest.fixture
def siblings(bundle: Bundle) -> Iterator[Path]:
    yield bundle.root.parent
    assert [path.name for path in bundle.root.parent.iterdir()] == ["b"]


def test_evidence_of_a_bundle_that_was_replaced_meanwhile_does_not_break_the_new_one(
    bundle: Bundle, siblings: Path
) -> None:
    new = make(bundle.root, content="another graph")
    said = "another bundle was put there meanwhile"
    with pytest.raises(InputError, match=said):
        bundle.with_checks([PASSED])
    with pytest.raises(InputError, match=said):
        bundle.with_timings([])
    assert Bundle.open(bundle.root).manifest == new.manifest
    assert siblings.is_dir()


def test_checks_and_timings_that_are_renewed_side_by_side_are_both_kept(bundle: Bundle) -> None:
    other = replace(PASSED, samples=99)
    bundle.with_checks([other])
    bundle.with_timings([{"shape": "1x8"}])
    renewed = Bundle.open(bundle.root)
    assert renewed.checks == (other,)
    assert renewed.timings == ({"shape": "1x8"},)


def test_an_interrupted_build_leaves_the_last_good_bundle_and_no_scrap(
    bundle: Bundle, siblings: Path
) -> None:
    def build() -> None:
        with writing(bundle.root) as draft:
            draft.graph_path("encoder", "fp32").write_text("half a graph")
            raise InterruptedHereError

    with pytest.raises(InterruptedHereError):
        build()
    assert Bundle.open(bundle.root).verified
    assert siblings.is_dir()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("Not enough free space to write 46881792 bytes after offset 786432"),
        shutil.Error([("/a", "/b", "[Errno 28] No space left on device: '/a' -> '/b'")]),
    ],
)
def test_a_disk_that_is_full_is_named_with_what_is_free(
    bundle: Bundle, siblings: Path, error: OSError
) -> None:
    said = r"No space left on device: \d+ MB in .+ make room"
    with pytest.raises(OSError, match=said) as raised, writing(bundle.root):
        raise error
    assert raised.value.filename == str(bundle.root)
    assert Bundle.open(bundle.root).verified
    assert siblings.is_dir()


def test_what_else_the_system_refuses_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match="not yours"), writing(tmp_path / "b"):
        raise PermissionError(errno.EACCES, "not yours")


def test_a_finished_build_replaces_the_bundle(bundle: Bundle, siblings: Path) -> None:
    again = make(bundle.root, content="another graph")
    assert (again.root / "graphs" / "encoder.fp32.onnx").read_text() == "another graph"
    assert siblings.is_dir()


def test_a_folder_with_other_files_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="is a folder with other files in it"):
        make(tmp_path / "mine")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        make(tmp_path / "file")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("manifest", ['{"name": "an extension", "manifest_version": 3}', "not JSON", "[]"])
def test_a_manifest_of_others_makes_no_bundle_of_a_folder(tmp_path: Path, manifest: str) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "manifest.json").write_text(manifest)
    (mine / "main.js").write_text("years of work")
    with pytest.raises(InputError, match="is a folder with other files in it"):
        make(mine)
    assert (mine / "main.js").read_text() == "years of work"


def test_a_damaged_bundle_can_be_replaced(bundle: Bundle) -> None:
    (bundle.root / "manifest.json").write_text("{")
    assert make(bundle.root).verified


def test_what_a_bundle_is_put_beside_is_not_overwritten_either(bundle: Bundle, tmp_path: Path) -> None:
    mine = tmp_path / "b.failed"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with (
        pytest.raises(InputError, match=r"b\.failed: is a folder with other files"),
        writing(bundle.root) as draft,
    ):
        draft.to = mine
    assert (mine / "thesis.txt").read_text() == "years of work"


def test_a_file_is_no_bundle_and_said_to_be_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"notes\.txt: is a file, expected the folder of a bundle$"):
        Bundle.open(tmp_path / "notes.txt")


def test_a_bundle_opens_from_any_place(bundle: Bundle, tmp_path: Path) -> None:
    moved = bundle.root.rename(tmp_path / "moved")
    assert Bundle.open(moved).engine("encoder").path == moved / "engines" / "encoder.fake"


def test_an_unknown_part_is_named(bundle: Bundle) -> None:
    with pytest.raises(InputError, match=r"no engine for part 'decoder'; has \['encoder'\]"):
        bundle.engine("decoder")


def test_ranges_and_the_precision_a_file_comes_in_are_kept(tmp_path: Path) -> None:
    ranged = replace(SPEC.parts[0].outputs[0], range=(0.0, 1.0))
    spec = replace(SPEC, comes_in="int8", parts=(replace(SPEC.parts[0], outputs=(ranged,)),))
    assert make(tmp_path / "b", spec=spec).model == spec


def test_a_bundle_from_before_there_were_ranges_is_read(bundle: Bundle) -> None:
    path = bundle.root / "manifest.json"
    raw = json.loads(path.read_text())
    del raw["model"]["comes_in"]
    for tensor in (*raw["model"]["parts"][0]["inputs"], *raw["model"]["parts"][0]["outputs"]):
        del tensor["range"]
    path.write_text(json.dumps(raw))
    assert Bundle.open(bundle.root).model == SPEC


@pytest.mark.parametrize("ends", [[0], [0, "1"], [0, 1, 2]])
def test_a_range_that_is_none_is_refused_by_field(bundle: Bundle, ends: list[object]) -> None:
    path = bundle.root / "manifest.json"
    raw = json.loads(path.read_text())
    raw["model"]["parts"][0]["inputs"][0]["range"] = ends
    path.write_text(json.dumps(raw))
    with pytest.raises(
        InputError, match=r"model\.parts\[0\]\.inputs\[0\]\.range: is \[.*\], expected two numbers"
    ):
        Bundle.open(bundle.root)
