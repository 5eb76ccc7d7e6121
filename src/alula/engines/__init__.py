"""Runtimes behind one protocol: each file owns one vendor, and nothing is imported before it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec

from alula.core.engine import Backend, Traits
from alula.core.errors import InputError, MissingExtraError

__all__ = ["BACKENDS", "TARGETS", "backend", "importable", "resolve", "traits"]


def _openvino() -> Backend:
    _need("openvino", "cpu")
    from alula.engines.openvino import OpenVino  # noqa: PLC0415 - loads the vendor

    return OpenVino()


def _onnxruntime() -> Backend:
    _need("onnxruntime", "cpu")
    from alula.engines.onnxruntime import OnnxRuntime  # noqa: PLC0415 - loads the vendor

    return OnnxRuntime()


def _torch() -> Backend:
    _need("torch", "torch")
    raise InputError(
        "engine 'torch' is the reference: it runs a checkpoint, not a graph; "
        "open one with alula.engines.torch.reference"
    )


def _fake() -> Backend:
    from alula.engines.fake import Fake  # noqa: PLC0415 - like the others

    return Fake()


BACKENDS: Mapping[str, Callable[[], Backend]] = {
    "openvino": _openvino,
    "onnxruntime": _onnxruntime,
    "torch": _torch,
    "fake": _fake,
}

# In the order "auto" and "cpu" try them: OpenVINO was the faster one on every CPU measured.
CPU = ("openvino", "onnxruntime")
TARGETS = ("auto", "cpu", *CPU)
"""What a bundle may be built for; the other backends are the reference and a stand-in for tests."""
NOT_YET = ("cuda", "tensorrt", "tensorrt-rtx")


def backend(name: str) -> Backend:
    """The runtime of that name, ready to compile and open; never another one in its place."""
    if name in NOT_YET:
        raise InputError(f"engine {name!r} is not built yet; there are {', '.join(BACKENDS)}")
    if name not in BACKENDS:
        raise InputError(f"no engine {name!r}; there are {', '.join(BACKENDS)}")
    return BACKENDS[name]()


def traits(name: str) -> Traits:
    """What the version found of a runtime, and this machine, mean for a build."""
    return Traits()


def importable(name: str) -> bool:
    """Whether the library behind an engine can be imported here."""
    if name in sys.modules:
        return sys.modules[name] is not None
    return name == "fake" or find_spec(name) is not None


def resolve(target: str) -> str:
    """The engine that a target names: "auto" and "cpu" choose one, every other name is that engine or refused."""
    there_are = f"there are {', '.join(TARGETS)}"
    if target in {"auto", "cpu"}:
        for name in CPU:
            if importable(name):
                return name
        raise MissingExtraError(f"target {target!r}", "cpu")
    if target in NOT_YET:
        raise InputError(f"target {target!r} is not built yet; {there_are}")
    if target == "torch":
        raise InputError(f"target 'torch' is what bundles are compared with, not built for; {there_are}")
    if target not in CPU:
        raise InputError(f"no target {target!r}; {there_are}")
    return target


def _need(library: str, extra: str) -> None:
    """Import a vendor's library, or say which extra brings it."""
    try:
        import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise MissingExtraError(f"engine {library!r}", extra) from error
