"""What is compiled for a GPU on a machine without one, and what becomes of it there: TensorRT-RTX compiles anywhere."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import served
import tiny

from alula import choices as choices_module
from alula import local, prove
from alula.benching import BenchRequest, bench_bundles
from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.cli import main
from alula.cli.build import verdict
from alula.core.engine import Traits
from alula.core.errors import EngineError, InputError, MissingExtraError
from alula.core.progress import Silent
from alula.engines.tensorrt import vendor
from alula.local import local_engine
from alula.prove import VerifyRequest, verify_bundle

NO_GPU = Traits(cannot_run="there is no CUDA GPU here")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def compiled(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A bundle that was compiled where it cannot run, whatever the machine at hand is."""
    folder = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALULA_CACHE", str(folder / "cache"))
        patch.setattr(choices_module, "traits_of", lambda name: NO_GPU)
        request = BuildRequest(
            model=str(model), to=folder / "b", target="tensorrt-rtx", precision="fp16", reference="own-graph"
        )
        build(request, Silent())
        yield folder / "b"


def test_what_cannot_run_here_is_compiled_and_claims_nothing(compiled: Path) -> None:
    bundle = Bundle.open(compiled)
    assert bundle.checks == ()
    assert not bundle.verified
    (rung,) = bundle.manifest.rungs
    assert (rung.taken, rung.passed) == (True, False)
    assert rung.reason == "compiled here, not run (there is no CUDA GPU here)"
    # What it is to be held to where it runs, without torch and without the checkpoint.
    assert bundle.stored.reference == "own-graph"
    assert len(bundle.stored.feeds) > 3


def test_the_command_line_says_loudly_that_it_is_not_verified_and_ends_well(
    model: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compiling was asked for on purpose; and what is not verified takes no verified bundle's place."""
    monkeypatch.setenv("ALULA_CACHE", str(compiled.parent / "cache"))
    monkeypatch.setattr(choices_module, "traits_of", lambda name: NO_GPU)
    there = served.make_bundle(compiled.parent / "there")
    words = f"alula build {model} -o {there} --target tensorrt-rtx --precision fp16 --reference own-graph"
    monkeypatch.setattr(sys, "argv", words.split())
    assert main() == 0
    out, err = capsys.readouterr()
    beside = there.with_name("there.unverified")
    assert err.splitlines()[-1] == f"{there} is verified and stays: what is less goes beside it, to {beside}"
    assert (
        out.rstrip()
        .splitlines()[-1]
        .partition("; ")[2]
        .startswith(
            "NOT verified: compiled here, not run (there is no CUDA GPU here); "
            f"run `alula verify {beside}` where it can run; from the cache in "
        )
    )
    assert "NOT RUN" in out
    assert "checks\n" not in out
    assert Bundle.open(there).verified
    monkeypatch.setattr(sys, "argv", ["alula", "serve", str(beside), "--port", "0"])
    assert main() == 2
    said = capsys.readouterr().err
    assert f"is not verified: it was compiled and not run; run alula verify {beside} where it can run" in said
    monkeypatch.setattr(sys, "argv", ["alula", "inspect", str(beside)])
    assert main() == 0
    said = capsys.readouterr().out
    assert "holds no layers of its engine (tensorrt-rtx): they are read off an engine that is loaded" in said


def test_inspect_shows_every_profile_and_what_it_was_compiled_with(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(choices_module, "traits_of", lambda name: NO_GPU)
    options = (
        "--target tensorrt-rtx --precision fp16 --reference own-graph --profile small=batch=1:1:1,length=2:8:16 "
        "--profile batch=4:8:8,length=8:16:16 --workspace 1GiB --level 2 --time-limit 5m"
    )
    monkeypatch.setattr(
        sys, "argv", ["alula", "build", str(model), "-o", str(tmp_path / "b"), *options.split()]
    )
    assert main() == 0
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["alula", "inspect", str(tmp_path / "b")])
    assert main() == 0
    shown = {line[:14].strip(): line[14:].strip() for line in capsys.readouterr().out.splitlines()}
    assert shown["profile 1"] == "batch 1:1:1, length 2:8:16"
    assert shown["profile 2"] == "batch 4:8:8, length 8:16:16"
    assert shown["compiled with"] == "--workspace 1GiB --level 2 --time-limit 5m"
    plan = Bundle.open(tmp_path / "b").engine("encoder").plan
    assert str(plan.profile) == "batch 1:1:8, length 2:8:16"


def test_where_it_cannot_run_it_is_refused_and_not_run_on_the_cpu(
    compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "traits", lambda name: NO_GPU)
    said = (
        r"b: built for 'tensorrt-rtx .* sm_80\+', and that cannot run here: there is no CUDA GPU here; alula doctor "
        r"says what can, and for this CPU it is: alula build \S+ -o \S+b-cpu --target cpu .*--length 2:64:64$"
    )
    with pytest.raises(EngineError, match=said):
        local_engine(Bundle.open(compiled))
    with pytest.raises(EngineError, match=said):
        verify_bundle(Bundle.open(compiled), VerifyRequest(), Silent())
    with pytest.raises(EngineError, match=said):
        bench_bundles([Bundle.open(compiled)], BenchRequest(), Silent())


def test_without_the_gpus_library_it_is_refused_and_not_run_on_the_cpu(
    compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # microsoft/onnxruntime#23372
    monkeypatch.setattr(vendor, "_findable", lambda name: False)
    said = r"b: built for 'tensorrt-rtx .* sm_80\+', which needs: pip install 'alula\[tensorrt-rtx\]'$"
    with pytest.raises(MissingExtraError, match=said):
        local_engine(Bundle.open(compiled))


@pytest.fixture
def elsewhere(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bundle]:
    """A bundle that was compiled as if on a machine where it cannot run; here it can."""
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "cache"))

    def made(**more: Any) -> Bundle:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(choices_module, "traits_of", lambda name: NO_GPU)
            request = BuildRequest(
                model=str(model), to=tmp_path / "b", target="onnxruntime", reference="pytorch", **more
            )
            return build(request, Silent()).bundle

    return made


def test_where_it_runs_verify_judges_it_without_checkpoint_and_torch(
    elsewhere: Callable[..., Bundle], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = elsewhere(precision="fp32")
    assert not bundle.verified
    monkeypatch.setattr(prove, "checkpoint_of", lambda bundle, model: None)
    proved = verify_bundle(bundle, VerifyRequest(), Silent())
    assert proved.verified
    assert {check.metric: check.reference for check in proved.checks} == {
        "cosine": "pytorch",
        "max_error": "pytorch",
        "batch_equals_single_cosine": "own-graph",
        "batch_equals_single": "own-graph",
        "padding_changes_nothing_cosine": "own-graph",
        "padding_changes_nothing": "own-graph",
    }


def test_what_was_promised_on_rows_is_judged_on_them_before_it_counts(
    elsewhere: Callable[..., Bundle], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.txt"
    rows.write_text("\n".join(f"the {word} sat" for word in tiny.WORDS))
    bundle = elsewhere(precision="int8", data=rows)
    assert bundle.manifest.promise["data"]["rows"] == len(tiny.WORDS)
    with pytest.raises(
        InputError, match=r"was compiled and not run, so what it loses .* with --data rows\.txt"
    ):
        verify_bundle(bundle, VerifyRequest(), Silent())
    assert verdict(bundle).endswith(f"run `alula verify {bundle.root} --data rows.txt` where it can run")
    proved = verify_bundle(bundle, VerifyRequest(data=rows), Silent())
    assert proved.verified
    assert any(check.rows for check in proved.checks)
    assert verify_bundle(proved, VerifyRequest(), Silent()).verified


@pytest.mark.parametrize(
    "built",
    [
        "tensorrt-rtx 1.6.0.1 x86_64 sm_80+",  # another version
        "tensorrt-rtx 1.7.1.116 aarch64 sm_80+",  # another processor
        "tensorrt 8.6.0 x86_64 sm_90 NVIDIA H200",
        "nonsense",
    ],
)
def test_an_engine_of_another_build_is_refused_with_the_command_that_builds_it(
    compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: str
) -> None:
    # NVIDIA/TensorRT#2177: an engine of another TensorRT or another GPU, which failed when it was loaded.
    monkeypatch.setattr(local, "traits", lambda name: Traits())
    assert local_engine(Bundle.open(compiled)).target.startswith("tensorrt-rtx 1.7")
    bundle = edited(compiled, tmp_path / "edited", built)
    with pytest.raises(EngineError) as error:
        local_engine(bundle)
    here = Bundle.open(compiled).engine("encoder").target
    said = str(error.value)
    assert said.startswith(
        f"{bundle.root}: built for {built!r}, running on {here!r}; build it again here: alula build "
    )
    assert f"-o {bundle.root} --target tensorrt-rtx --precision fp16 " in said
    assert said.endswith("--batch 1:8:64 --length 2:64:64")


def test_a_truncated_engine_is_refused_before_anything_loads_it(compiled: Path, tmp_path: Path) -> None:
    # NVIDIA/TensorRT#2072: a truncated engine ended the process that loaded it.
    bundle = edited(compiled, tmp_path / "cut", Bundle.open(compiled).engine("encoder").target)
    plan = bundle.engine("encoder").path / "engine.plan"
    whole = plan.read_bytes()
    plan.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        InputError, match=rf"engine\.plan: has {len(whole) // 2} bytes, expected {len(whole)}: cut short"
    ):
        Bundle.open(bundle.root)


def edited(bundle: Path, to: Path, target: str) -> Bundle:
    """A copy whose manifest says that it was built for another target."""
    shutil.copytree(bundle, to)
    raw = json.loads((to / "manifest.json").read_text())
    raw["engines"]["encoder"]["target"] = target
    (to / "manifest.json").write_text(json.dumps(raw))
    return Bundle.open(to)
