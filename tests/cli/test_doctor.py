"""What `alula doctor` says of GPUs and targets; versions, drivers and GPUs are planted."""

from __future__ import annotations

import json
import sys

import pytest

from alula.cli import doctor, main
from alula.cli.doctor import gpu_lines, target_row
from alula.core.engine import Traits
from alula.engines.cuda import Device

H200 = Device(name="NVIDIA H200", capability="9.0", memory_bytes=150_754_820_096)
NO_GPU = "there is no CUDA GPU here"
OLD = Traits(opset=17, lacks={"bf16": "TensorRT 8.6.0 has no bf16; 10 and later have"})


def test_a_gpu_is_shown_with_driver_capability_and_memory() -> None:
    assert gpu_lines((H200, H200), "13.0", bindings=True) == [
        ("gpu", "NVIDIA H200, compute capability 9.0, 140.4 GiB"),
        ("gpu", "NVIDIA H200, compute capability 9.0, 140.4 GiB"),
        ("cuda driver", "serves CUDA up to 13.0"),
    ]


def test_why_no_gpu_is_shown_is_said() -> None:
    assert gpu_lines((), None, bindings=True) == [("gpu", "none: there is no CUDA driver here")]
    assert gpu_lines((), "12.4", bindings=True) == [
        ("gpu", "none that the CUDA driver shows"),
        ("cuda driver", "serves CUDA up to 12.4"),
    ]
    assert gpu_lines((), None, bindings=False) == [
        ("gpu", "not looked for: that needs cuda-bindings (pip install 'alula[tensorrt]')")
    ]


@pytest.mark.parametrize(
    ("target", "version", "traits", "compiles", "runs", "why_not", "get"),
    [
        ("tensorrt", "8.6.0", OLD, True, True, "", ""),
        ("tensorrt", "11.1.0", Traits(cannot_run=NO_GPU, cannot_compile=NO_GPU), False, False, NO_GPU, ""),
        ("tensorrt-rtx", "1.7.1", Traits(cannot_run=NO_GPU), True, False, NO_GPU, ""),
        (
            "tensorrt-rtx",
            "1.7.1",
            Traits(cannot_run="cuda-bindings is not installed here"),
            True,
            False,
            "cuda-bindings is not installed here",
            "pip install 'alula[tensorrt-rtx]'",
        ),
        (
            "tensorrt",
            None,
            Traits(cannot_run="tensorrt is not installed here"),
            False,
            False,
            "not installed",
            "pip install 'alula[tensorrt]'",
        ),
        ("openvino", None, Traits(), False, False, "not installed", "pip install 'alula[cpu]'"),
    ],
)
def test_a_target_compiles_and_runs_or_says_why_not_and_what_helps(
    target: str, version: str | None, traits: Traits, compiles: bool, runs: bool, why_not: str, get: str
) -> None:
    row = target_row(target, version, traits)
    assert (row["compiles"], row["runs"], row["why_not"], row["get"]) == (compiles, runs, why_not, get)


def test_what_a_version_lacks_is_not_among_its_precisions() -> None:
    row = target_row("tensorrt", "8.6.0", OLD)
    assert row["precisions"] == ["fp32", "fp16", "fp16-mixed", "int8", "int8-mixed"]
    assert (row["opset"], row["lacks"]) == (17, {"bf16": "TensorRT 8.6.0 has no bf16; 10 and later have"})


def test_all_of_it_is_in_the_text_and_in_the_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "devices", lambda: (H200,))
    monkeypatch.setattr(doctor, "driver_version", lambda: "13.0")
    monkeypatch.setattr(doctor, "has_bindings", lambda: True)
    monkeypatch.setattr(doctor, "version_of", {"tensorrt": "8.6.0", "tensorrt-rtx": None}.get)
    monkeypatch.setattr(doctor, "traits", lambda name: OLD if name == "tensorrt" else Traits())
    monkeypatch.setattr(sys, "argv", ["alula", "doctor"])
    assert main() == 0
    out = capsys.readouterr().out
    for said in (
        "NVIDIA H200, compute capability 9.0, 140.4 GiB",
        "serves CUDA up to 13.0",
        "tensorrt: reads opset 17 at most, which graphs are then written in",
        "tensorrt: no bf16: TensorRT 8.6.0 has no bf16; 10 and later have",
        "pip install 'alula[tensorrt-rtx]'",
    ):
        assert said in out
    monkeypatch.setattr(sys, "argv", ["alula", "doctor", "--json"])
    assert main() == 0
    report = json.loads(capsys.readouterr().out)
    assert report["gpus"] == [{"name": "NVIDIA H200", "capability": "9.0", "memory_bytes": 150_754_820_096}]
    assert report["cuda_driver"] == "13.0"
    assert [row["target"] for row in report["targets"]] == [
        "openvino",
        "onnxruntime",
        "tensorrt",
        "tensorrt-rtx",
    ]
