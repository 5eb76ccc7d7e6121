from __future__ import annotations

import subprocess
import sys

import pytest

from alula.core.errors import InputError, MissingExtraError
from alula.engines import BACKENDS, TARGETS, backend, importable, resolve


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
        InputError, match=r"^no engine 'openvin'; there are openvino, onnxruntime, torch, fake$"
    ):
        backend("openvin")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("gpu", "no target 'gpu'"),
        ("fake", "no target 'fake'"),
        ("torch", "target 'torch' is what bundles are compared with, not built for"),
        ("tensorrt", "target 'tensorrt' is not built yet"),
    ],
)
def test_a_target_that_nothing_is_built_for_is_refused_with_those_there_are(target: str, said: str) -> None:
    with pytest.raises(InputError, match=f"^{said}; there are auto, cpu, openvino, onnxruntime$"):
        resolve(target)
    assert target not in TARGETS


@pytest.mark.parametrize("name", ["cuda", "tensorrt", "tensorrt-rtx"])
def test_engines_to_come_are_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=f"^engine '{name}' is not built yet; there are "):
        backend(name)
    with pytest.raises(InputError, match=f"^target '{name}' is not built yet; there are auto, cpu, "):
        resolve(name)


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
    assert resolve(target) == "openvino"
    without(monkeypatch, "openvino")
    assert resolve(target) == "onnxruntime"
    without(monkeypatch, "onnxruntime")
    with pytest.raises(MissingExtraError, match=f"^target '{target}' needs: pip install 'alula\\[cpu\\]'$"):
        resolve(target)


def test_a_named_engine_is_never_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "openvino")
    assert resolve("openvino") == "openvino"
    with pytest.raises(MissingExtraError):
        backend(resolve("openvino"))


def test_choosing_an_engine_loads_no_other_vendor() -> None:
    script = (
        "import sys; from alula.engines import backend; backend('fake'); "
        "print(sorted({'torch', 'transformers', 'openvino', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert set(BACKENDS) == {"openvino", "onnxruntime", "torch", "fake"}
