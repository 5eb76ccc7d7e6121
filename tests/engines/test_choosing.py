from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from alula import engines
from alula.core.engine import Traits
from alula.core.errors import InputError, MissingExtraError
from alula.engines import BACKENDS, TARGETS, backend, importable, resolve, traits
from alula.engines.cuda import Device
from alula.engines.tensorrt import backend as tensorrt

RTX = ("tensorrt_rtx", "tensorrt_rtx_bindings")
THERE_ARE = "there are auto, cpu, openvino, onnxruntime, tensorrt, tensorrt-rtx"


def without(monkeypatch: pytest.MonkeyPatch, *libraries: str) -> None:
    """Make libraries unimportable, as where they are not installed."""
    for library in libraries:
        monkeypatch.setitem(sys.modules, library, None)


@pytest.mark.parametrize("name", ["openvino", "onnxruntime", "fake"])
def test_an_engine_is_found_by_its_name(name: str) -> None:
    assert backend(name).name == name
    assert backend(name).target.startswith(name)


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        InputError,
        match=r"^no engine 'openvin'; there are openvino, onnxruntime, tensorrt, tensorrt-rtx, torch, fake$",
    ):
        backend("openvin")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("gpu", "no target 'gpu'"),
        ("fake", "no target 'fake'"),
        ("torch", "target 'torch' is what bundles are compared with, not built for"),
        ("cuda", "target 'cuda' is not built yet"),
    ],
)
def test_a_target_that_nothing_is_built_for_is_refused_with_those_there_are(target: str, said: str) -> None:
    with pytest.raises(InputError, match=f"^{said}; {THERE_ARE}$"):
        resolve(target)
    assert target not in TARGETS


def test_an_engine_to_come_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"^engine 'cuda' is not built yet; there are "):
        backend("cuda")


def test_torch_says_how_the_reference_is_opened() -> None:
    pytest.importorskip("torch")
    with pytest.raises(InputError, match=r"open one with alula.engines.torch.reference$"):
        backend("torch")


@pytest.mark.parametrize(("name", "extra"), [("openvino", "cpu"), ("onnxruntime", "cpu"), ("torch", "torch")])
def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch, name: str, extra: str) -> None:
    without(monkeypatch, name)
    with pytest.raises(MissingExtraError, match=f"^engine '{name}' needs: pip install 'alula\\[{extra}\\]'$"):
        backend(name)
    assert not importable(name)


@pytest.mark.parametrize("target", ["auto", "cpu"])
def test_auto_and_cpu_take_the_first_engine_installed(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setattr(engines, "traits", lambda name: Traits(cannot_run="there is no CUDA GPU here"))
    assert resolve(target) == "openvino"
    without(monkeypatch, "openvino")
    assert resolve(target) == "onnxruntime"
    without(monkeypatch, "onnxruntime")
    with pytest.raises(MissingExtraError, match=f"^target '{target}' needs: pip install 'alula\\[cpu\\]'$"):
        resolve(target)


def test_auto_is_the_gpu_where_one_runs_what_is_compiled_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which libraries and GPUs there are is planted; no test needs a GPU."""
    runs: dict[str, str] = {"tensorrt": "", "tensorrt-rtx": ""}
    monkeypatch.setattr(engines, "BACKENDS", {**BACKENDS, **dict.fromkeys(runs, BACKENDS["fake"])})
    monkeypatch.setattr(engines, "traits", lambda name: Traits(cannot_run=runs[name]))
    for library in ("tensorrt", *RTX):
        monkeypatch.setitem(sys.modules, library, ModuleType(library))
    assert resolve("auto") == "tensorrt"
    assert resolve("cpu") == "openvino"
    runs["tensorrt"] = "TensorRT 8.6 has no kernels for compute capability 12.0"
    assert resolve("auto") == "tensorrt-rtx"
    runs["tensorrt-rtx"] = "there is no CUDA GPU here"
    assert resolve("auto") == "openvino"
    without(monkeypatch, "tensorrt", *RTX)
    runs.clear()  # what is not installed is not asked about
    assert resolve("auto") == "openvino"


@pytest.mark.parametrize(
    ("target", "libraries", "extra"),
    [
        ("openvino", ("openvino",), "cpu"),
        ("onnxruntime", ("onnxruntime",), "cpu"),
        ("tensorrt", ("tensorrt",), "tensorrt"),
        ("tensorrt-rtx", RTX, "tensorrt-rtx"),
    ],
)
def test_a_named_target_is_never_replaced_by_another(
    monkeypatch: pytest.MonkeyPatch, target: str, libraries: tuple[str, ...], extra: str
) -> None:
    # microsoft/onnxruntime#23372: the GPU's libraries were absent, and the session was silently on the CPU.
    without(monkeypatch, *libraries)
    with pytest.raises(
        MissingExtraError, match=f"^target '{target}' needs: pip install 'alula\\[{extra}\\]'$"
    ):
        resolve(target)
    monkeypatch.setitem(sys.modules, libraries[-1], ModuleType(libraries[-1]))
    assert resolve(target) == target


H200 = Device(name="NVIDIA H200", capability="9.0", memory_bytes=139 << 30)
ADA = Device(name="NVIDIA L4", capability="8.9", memory_bytes=22 << 30)


@pytest.mark.parametrize(
    ("target", "version", "gpus", "cannot_run", "cannot_compile"),
    [
        ("tensorrt", "8.6.0", (H200,), "", ""),
        ("tensorrt", "10.14.1", (), "there is no CUDA GPU here", "there is no CUDA GPU here"),
        ("tensorrt", None, (H200,), "tensorrt is not installed here", "tensorrt is not installed here"),
        ("tensorrt-rtx", "1.7.1", (ADA,), "", ""),
        ("tensorrt-rtx", "1.7.1", (), "there is no CUDA GPU here", ""),  # it compiles anywhere
        (
            "tensorrt-rtx",
            "1.7.1",
            (H200,),
            "TensorRT-RTX does not run on NVIDIA H200 (9.0); use --target tensorrt",
            "",
        ),
    ],
)
def test_what_a_gpus_target_can_do_here_is_said_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    version: str | None,
    gpus: tuple[Device, ...],
    cannot_run: str,
    cannot_compile: str,
) -> None:
    """Which version and GPUs there are is planted."""
    monkeypatch.setattr(tensorrt, "version_of", lambda name: version)
    monkeypatch.setattr(tensorrt, "devices", lambda: gpus)
    found = traits(target)
    assert (found.cannot_run, found.cannot_compile) == (cannot_run, cannot_compile)


def test_what_tensorrt_8_lacks_is_said_before_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt, "version_of", lambda name: "8.6.0")
    monkeypatch.setattr(tensorrt, "devices", lambda: (H200,))
    assert traits("tensorrt").opset == 17
    assert traits("tensorrt").lacks == {
        "bf16": "TensorRT 8.6.0 has no bf16; 10 and later have",
        "--strip-weights": "TensorRT 8.6.0 keeps weights in its engines; 10 and later can leave them out",
    }
    monkeypatch.setattr(tensorrt, "version_of", lambda name: "10.14.1.48")
    assert traits("tensorrt") == Traits()


def test_choosing_an_engine_loads_no_other_vendor() -> None:
    script = (
        "import sys; from alula.engines import backend, resolve; backend('fake'); resolve('auto'); "
        "print(sorted({'torch', 'openvino', 'onnxruntime', 'tensorrt_rtx_bindings', 'tensorrt'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert set(BACKENDS) == {"openvino", "onnxruntime", "tensorrt", "tensorrt-rtx", "torch", "fake"}
