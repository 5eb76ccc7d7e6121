"""The options of `alula build` that say what for and how to compile: read, handed on, refused by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from alula import build as build_module
from alula import choices as choices_module
from alula.build import BuildRequest
from alula.cli import main
from alula.core.engine import Traits
from alula.core.profile import Range
from alula.planning import Wanted

NO_GPU = Traits(cannot_run="there is no CUDA GPU here")


def ran(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """The exit code, and the last line of what was said."""
    monkeypatch.setattr(sys, "argv", ["alula", "build", *args])
    code = main()
    return code, capsys.readouterr().err.splitlines()[-1]


def test_all_of_them_reach_the_build(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[BuildRequest] = []

    def build(request: BuildRequest, progress: object) -> None:
        requests.append(request)
        raise KeyboardInterrupt

    monkeypatch.setattr(build_module, "build", build)
    options = (
        "--batch 1:8:64 --length 16:128:512 --height 320:640:1280 --width 32:64:96 --axis depth=3 "
        "--profile small=batch=1:1:1,length=1:64:128 --profile batch=8:8:8 --profile-from traffic.jsonl "
        "--workspace 4GiB --level 0 --time-limit 20m --portable --strip-weights"
    )
    assert ran(monkeypatch, capsys, "MODEL", "-o", "B", *options.split())[0] == 130
    assert requests[0].axes == {
        "batch": Range(1, 8, 64),
        "length": Range(16, 128, 512),
        "height": Range(320, 640, 1280),
        "width": Range(32, 64, 96),
        "depth": Range(3, 3, 3),
    }
    assert requests[0].compiling == Wanted(
        profiles=({"batch": Range(1, 1, 1), "length": Range(1, 64, 128)}, {"batch": Range(8, 8, 8)}),
        traffic=Path("traffic.jsonl"),
        workspace_bytes=4 << 30,
        level=0,
        time_limit_s=1200.0,
        portable=True,
        strip_weights=True,
    )
    assert ran(monkeypatch, capsys, "MODEL", "-o", "B")[0] == 130
    assert requests[1].compiling == Wanted()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--workspace 4", "--workspace '4': expected a number with one of GiB, MiB, KiB, GB, MB, KB, B"),
        ("--time-limit 20", "--time-limit '20': expected a number with one of h, m, s, such as 20m"),
        (
            "--level 1 --level 6",
            "Invalid value for '--level': Input should be less than or equal to 5, given '6' (see",
        ),
        ("--level 6", "Invalid value for '--level': Input should be less than or equal to 5, given '6' (see"),
        (
            "--level=-1",
            "Invalid value for '--level': Input should be greater than or equal to 0, given '-1' (see",
        ),
        ("--profile batch", "--profile 'batch': 'batch': expected NAME=MIN:OPT:MAX"),
        (
            "--profile batch=4:2:1",
            "--profile 'batch=4:2:1': axis 'batch': need 1 <= min <= opt <= max, got 4:2:1",
        ),
        ("--height 1:1:1 --axis height=2:2:2", "axis 'height' is given twice"),
        (
            "--workspace 4GiB",
            "--workspace is not for openvino, which has nothing like it; it is for tensorrt",
        ),
        ("--target onnxruntime --level 3", "--level is not for onnxruntime"),
        ("--profile batch=1:1:1 --profile batch=8:8:8", "2 profiles; openvino takes one"),
        (
            "--target cuda",
            "target 'cuda' is not built yet; there are auto, cpu, openvino, onnxruntime, tensorrt",
        ),
        ("--target tensorrt-rtx --precision fp32,fp16", "precision 'fp32,fp16' is chosen by measurement"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_before_the_model_is_looked_for(
    options: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(
        choices_module, "traits_of", lambda name: NO_GPU if name == "tensorrt-rtx" else Traits()
    )
    options = options if "--target" in options else f"{options} --target openvino"
    code, line = ran(monkeypatch, capsys, "./nowhere", "-o", str(tmp_path / "out"), *options.split())
    assert code == 2
    assert line.startswith(f"alula: {said}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--profile depth=1:1:1", "no axis 'depth'; model has batch, length"),
        ("--height 1:1:1", "no axis 'height'; model has batch, length"),
        ("--profile length=1:1:257", "axis 'length' up to 257; model takes 256 tokens at most"),
        ("--profile-from nowhere.jsonl", "nowhere.jsonl does not exist; expected a file of data"),
        ("--skip-bad-rows", "--skip-bad-rows says what may be lost on your rows; give them with --data FILE"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_by_name(
    options: str,
    said: str,
    minilm_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    code, line = ran(monkeypatch, capsys, str(minilm_folder), "-o", str(tmp_path / "out"), *options.split())
    assert code == 2
    assert line.startswith(f"alula: {said}")
    assert not (tmp_path / "out").exists()
