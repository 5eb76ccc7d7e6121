"""The TensorRT found here, and what its version means; the only importer of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from alula.core.errors import EngineError, MissingExtraError
from alula.core.machine import installed

Target = Literal["tensorrt", "tensorrt-rtx"]

# The modules of one target, best first: the wheels on the package index have the second name.
MODULES: Mapping[str, tuple[str, ...]] = {
    "tensorrt": ("tensorrt",),
    "tensorrt-rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
}
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    "tensorrt-rtx": ("tensorrt-rtx", "tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu12-bindings"),
}

OLDEST = (8, 6)

# What TensorRT-RTX runs on; 9.0 is not among them.
RTX_CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """What a version has. Everything that differs between versions is asked of this, in one place.

    `opset` is the newest that its parser reads well (None: any that graphs are kept in); `typed` networks obey the
    types in the graph: by themselves ("always"), by a flag of the network ("flag"), or layer by layer ("layers").
    """

    opset: int | None
    typed: Literal["always", "flag", "layers"]
    bf16: bool
    batch_flag: bool
    monitor: bool
    strip_weights: bool
    cpu_compiles: bool
    timing_cache: bool
    portable_always: bool
    one_query_wrong: bool


def features_of(target: str, version: tuple[int, ...]) -> Features:
    """The features of a version. Pure.

    Sources: the release notes and migration guides of TensorRT 8.6, 10.0, 10.14 and 11.0.
    """
    rtx = target == "tensorrt-rtx"
    return Features(
        opset=None if rtx or version >= (10, 14) else 17,
        typed="always" if rtx or version >= (11,) else "flag" if version >= (10,) else "layers",
        bf16=rtx or version >= (10,),
        batch_flag=not rtx and version < (10,),
        monitor=rtx or version >= (10,),
        strip_weights=rtx or version >= (10,),
        cpu_compiles=rtx,
        # RTX would look for a GPU, and times nothing before the first run anyway.
        timing_cache=not rtx,
        portable_always=rtx,
        one_query_wrong=not rtx and version < (10,),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """A TensorRT that is loaded."""

    target: str
    version: str
    module: Any
    features: Features


def number_of(version: str) -> tuple[int, ...]:
    """A version such as 10.14.1.48 as whole numbers, as far as they go."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def version_of(target: str) -> str | None:
    """The version installed, without importing it; None if there is none."""
    if not any(_findable(name) for name in MODULES[target]):
        return None
    found = (installed(package) for package in _PACKAGES[target])
    if version := next((each for each in found if each is not None), None):
        return version
    # Some installations are no packages.
    try:
        return load(target).version
    except (EngineError, MissingExtraError):
        return None


def why_absent(target: str) -> str:
    """Why there is no version: it is not installed, or it is there and cannot be loaded."""
    try:
        load(target)
    except MissingExtraError:
        return f"{target} is not installed here"
    except EngineError as error:
        return str(error)
    return ""


def load(target: str) -> Library:
    """Import it, or say what is missing."""
    for name in MODULES[target]:
        if not _findable(name):
            continue
        try:
            module = import_module(name)
        except (ImportError, OSError, RuntimeError) as error:
            raise EngineError(f"{target} is installed but cannot be loaded: {error}") from error
        version = str(getattr(module, "__version__", ""))
        if target == "tensorrt" and number_of(version) < OLDEST:
            raise EngineError(f"TensorRT {version or 'of no version'} is here; 8.6 is the oldest that works")
        return Library(
            target=target, version=version, module=module, features=features_of(target, number_of(version))
        )
    raise MissingExtraError(f"engine {target!r}", target)


def _findable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):
        return False
