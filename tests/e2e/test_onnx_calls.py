"""A user's calls to an ONNX file: what eight bits are calibrated with, and every precision is judged on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_bundles import NAMED, SIDES, built, logarithm
from tiny_onnx import numbers, picture_net, saved

from alula.build import BuildRequest, build
from alula.core.errors import InputError
from alula.core.profile import Range
from alula.core.progress import Silent
from alula.families import parse_inputs
from alula.planning import Wanted
from alula.prove import VerifyRequest, verify_bundle


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(picture_net(), tmp_path_factory.mktemp("model") / "pictures.onnx")


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    folder = tmp_path / "calls"
    folder.mkdir()
    for at in range(6):
        np.savez(folder / f"{at}.npz", x=numbers(1, 3, 8 + 8 * (at % 3), 16, seed=at) * 2)
    return folder


def test_eight_bits_are_calibrated_and_judged_on_calls(pictures: Path, calls: Path, tmp_path: Path) -> None:
    request = BuildRequest(
        model=str(pictures),
        to=tmp_path / "out",
        target="onnxruntime",
        precision="fp32,int8",
        inputs=parse_inputs([NAMED]),
        compiling=Wanted(traffic=calls),
        data=calls,
        budget=0.01,
    )
    bundle = build(request, Silent()).bundle
    assert bundle.verified
    # The profile is what was seen, and no size beside it.
    axes = bundle.engine("encoder").plan.profile.axes
    assert axes == {"batch": Range(1, 1, 1), "height": Range(8, 16, 24), "width": Range(16, 16, 16)}
    rungs = {rung.precision: rung for rung in bundle.manifest.rungs}
    for rung in rungs.values():
        assert (rung.checks[0].metric, rung.checks[0].samples) == ("energy_of_error", 6)
    assert 0 < rungs["int8"].checks[0].worst < 0.01
    assert rungs["fp32"].checks[0].worst < 1e-8
    assert bundle.manifest.promise["data"]["rows"] == 6
    again = verify_bundle(bundle, VerifyRequest(data=calls), Silent())
    assert again.verified


def test_the_users_calls_are_not_kept_where_drawn_ones_do(
    pictures: Path, calls: Path, tmp_path: Path
) -> None:
    bundle = built(
        pictures, tmp_path / "out", "x=float32[batch,3,height,16]", precision="fp32",
        axes={"height": Range(8, 16, 24)}, data=calls,
    )  # fmt: skip
    given = [dict(np.load(path)) for path in sorted(calls.iterdir())]
    for kept in bundle.stored.feeds:
        assert not any(np.array_equal(kept["x"], call["x"]) for call in given)


def test_real_calls_stand_in_for_drawn_ones_that_a_file_does_not_take(tmp_path: Path) -> None:
    file = saved(logarithm(), tmp_path / "log.onnx")
    (tmp_path / "calls").mkdir()
    for at in range(3):
        np.savez(tmp_path / "calls" / f"{at}.npz", x=np.abs(numbers(2, 4, seed=at)) + 1)
    bundle = built(file, tmp_path / "out", precision="fp32", data=tmp_path / "calls")
    assert bundle.verified
    assert {check.samples for check in bundle.checks if check.metric == "rms_error"} == {6}


def test_a_call_outside_the_profile_is_refused_by_its_file(
    pictures: Path, calls: Path, tmp_path: Path
) -> None:
    """NVIDIA/TensorRT#2561: calls larger than the profile calibrated an engine that does not take them."""
    np.savez(calls / "7.npz", x=numbers(1, 3, 48, 16))
    with pytest.raises(
        InputError,
        match=r"7\.npz: axis 'height' is 48; built for 8\.\.32; widen the profile, or leave the file out",
    ):
        built(pictures, tmp_path / "out", NAMED, axes=SIDES, data=calls)


def test_a_metric_of_the_users_sees_arrays_by_output_and_the_files_names(
    pictures: Path, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "judge_of_calls.py").write_text(
        "def share(predictions, labels, texts):\n"
        "    assert [t[0] for t in texts] == [f'{at}.npz' for at in range(6)], texts\n"
        "    assert set(predictions[0]) == {'map', 'scores'}\n"
        "    return float(sum((p['map'] > 0.5).mean() for p in predictions)) / len(predictions)\n"
    )
    monkeypatch.chdir(tmp_path)
    bundle = built(
        pictures,
        tmp_path / "out",
        NAMED,
        precision="fp32",
        axes=SIDES,
        data=calls,
        metric="judge_of_calls:share",
    )
    assert bundle.verified
    assert [check.metric for check in bundle.checks[:2]] == ["judge_of_calls:share_drop", "energy_of_error"]


def test_rows_of_texts_are_no_calls(pictures: Path, tmp_path: Path) -> None:
    bundle = built(pictures, tmp_path / "out", NAMED, precision="fp32", axes=SIDES)
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(InputError, match=r"rows\.jsonl: is no file of arrays"):
        verify_bundle(bundle, VerifyRequest(data=tmp_path / "rows.jsonl"), Silent())
