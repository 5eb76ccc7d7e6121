"""Runtimes behind one protocol: each file owns one vendor, and nothing is imported before it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec

from alula.core.decoding import Cost, Decoding, Room
from alula.core.engine import Backend, Engine, Traits
from alula.core.errors import InputError, MissingExtraError
from alula.core.memory import free_bytes

__all__ = [
    "BACKENDS",
    "TARGETS",
    "VISION",
    "backend",
    "cache_cost",
    "extra_of",
    "importable",
    "open_decoding",
    "resolve",
    "room_left",
    "runs_on",
    "traits",
]


def _openvino() -> Backend:
    _need("openvino", "cpu")
    from alula.engines.openvino import OpenVino  # noqa: PLC0415 - loads the vendor

    return OpenVino()


def _onnxruntime() -> Backend:
    _need("onnxruntime", "cpu")
    from alula.engines.onnxruntime import OnnxRuntime  # noqa: PLC0415 - loads the vendor

    return OnnxRuntime()


def _tensorrt(name: str) -> Backend:
    from alula.engines.tensorrt.backend import TensorRt  # noqa: PLC0415 - like the others

    return TensorRt(name)


def _torch() -> Backend:
    _need("torch", "torch")
    raise InputError(
        "engine 'torch' is the reference: it runs a checkpoint, not a graph; "
        "open one with alula.engines.torch.reference"
    )


def _fake() -> Backend:
    from alula.engines.fake import Fake  # noqa: PLC0415 - like the others

    return Fake()


VISION = "vision"
"""The part of a model that turns images into tokens of its decoder."""

BACKENDS: Mapping[str, Callable[[], Backend]] = {
    "openvino": _openvino,
    "onnxruntime": _onnxruntime,
    "tensorrt": partial(_tensorrt, "tensorrt"),
    "tensorrt-rtx": partial(_tensorrt, "tensorrt-rtx"),
    "torch": _torch,
    "fake": _fake,
}

# In the order they are tried: OpenVINO was the faster one on every CPU measured.
CPU = ("openvino", "onnxruntime")
GPU = ("tensorrt", "tensorrt-rtx")
TARGETS = ("auto", "cpu", *CPU, *GPU)
"""What a bundle may be built for; the other backends are the reference and a stand-in for tests."""
NOT_YET = ("cuda",)

EXTRAS: Mapping[str, str] = {"openvino": "cpu", "onnxruntime": "cpu"}
"""The extra that brings an engine's library, where it is not of the engine's own name."""


def backend(name: str) -> Backend:
    """The runtime of that name, ready to compile and open; never another one in its place."""
    if name in NOT_YET:
        raise InputError(f"engine {name!r} is not built yet; there are {', '.join(BACKENDS)}")
    if name not in BACKENDS:
        raise InputError(f"no engine {name!r}; there are {', '.join(BACKENDS)}")
    return BACKENDS[name]()


def open_decoding(engines: Mapping[str, Engine], room: Room, *, threads: int = 0) -> Decoding:
    """A session that keeps the cache, on a decoder's engine, or on those of an encoder, its "cross" and a decoder.

    Where there is a vision part beside the decoder, sequences are given images.
    """
    if VISION in engines:
        return _open_seeing(engines, room, threads=threads)
    if _is_paged(engines):
        from alula.engines.openvino import OpenVino  # noqa: PLC0415 - loads the vendor

        return OpenVino().open_decoding(engines["decoder"], room, threads=threads)
    from alula.engines.dense import Dense, Loaded  # noqa: PLC0415 - nothing else needs it

    with ExitStack() as opened:
        parts = {}
        for name, engine in engines.items():
            session = backend(engine.backend).open(engine, threads=threads)
            opened.callback(session.close)
            parts[name] = Loaded(session=session, profile=engine.plan.profile)
        dense = Dense(parts, room)
        opened.pop_all()
    return dense


def _open_seeing(engines: Mapping[str, Engine], room: Room, *, threads: int) -> Decoding:
    from alula.engines.seeing import Seeing  # noqa: PLC0415 - nothing else needs it

    with ExitStack() as opened:
        vision = backend(engines[VISION].backend).open(engines[VISION], threads=threads)
        opened.callback(vision.close)
        seeing = Seeing(vision, open_decoding(_without_vision(engines), room, threads=threads))
        opened.pop_all()
    return seeing


def _without_vision(engines: Mapping[str, Engine]) -> dict[str, Engine]:
    return {name: engine for name, engine in engines.items() if name != VISION}


def cache_cost(engines: Mapping[str, Engine]) -> Cost:
    """What the cache of the session takes that `open_decoding` gives for these engines."""
    if _is_paged(_without_vision(engines)):
        from alula.engines.paged.session import cost as paged_cost  # noqa: PLC0415 - loads the vendor

        return paged_cost(engines["decoder"])
    from alula.engines.dense import cost  # noqa: PLC0415 - likewise

    return cost(engines)


def room_left(engines: Mapping[str, Engine]) -> int | None:
    """Free bytes of the memory in which these engines keep a cache, a GPU's or the machine's; None if nothing says."""
    if engines["decoder"].backend not in GPU:
        return free_bytes()
    from alula.engines.cuda import Cuda  # noqa: PLC0415 - CPU engines do without

    return Cuda().free_bytes()[0]


def _is_paged(engines: Mapping[str, Engine]) -> bool:
    """Whether OpenVINO has these as a decoder that keeps its cache itself."""
    if set(engines) != {"decoder"} or engines["decoder"].backend != "openvino":
        return False
    _need("openvino", "cpu")
    from alula.engines.paged.graph import is_paged  # noqa: PLC0415 - loads the vendor

    return is_paged(engines["decoder"].inputs)


def traits(name: str) -> Traits:
    """What the version found of a runtime, and this machine, mean for a build."""
    if name not in GPU:
        return Traits()
    from alula.engines.tensorrt.backend import traits_of  # noqa: PLC0415 - CPU engines do without

    return traits_of(name)


def runs_on(name: str, built: str, here: str) -> bool:
    """Whether an engine that was built for one target of a runtime runs on another."""
    if name not in GPU:
        return built == here
    from alula.engines.tensorrt.targets import runs_on as portable  # noqa: PLC0415 - CPU engines do without

    return portable(built, here)


def importable(name: str) -> bool:
    """Whether the library behind an engine can be imported here."""
    return name == "fake" or any(_findable(library) for library in _libraries(name))


def extra_of(name: str) -> str:
    """The extra of this package that brings an engine's library."""
    return EXTRAS.get(name, name)


def resolve(target: str) -> str:
    """The engine that a target names, whose library is here: "auto" and "cpu" choose one, nothing else is replaced.

    "auto" is a GPU's where one can run what is compiled for it, and the CPU's everywhere else.
    """
    there_are = f"there are {', '.join(TARGETS)}"
    if target in {"auto", "cpu"}:
        for name in (*GPU, *CPU) if target == "auto" else CPU:
            if name in BACKENDS and importable(name) and (name in CPU or not traits(name).cannot_run):
                return name
        raise MissingExtraError(f"target {target!r}", "cpu")
    if target in NOT_YET:
        raise InputError(f"target {target!r} is not built yet; {there_are}")
    if target == "torch":
        raise InputError(f"target 'torch' is what bundles are compared with, not built for; {there_are}")
    if target not in TARGETS:
        raise InputError(f"no target {target!r}; {there_are}")
    if not importable(target):
        raise MissingExtraError(f"target {target!r}", extra_of(target))
    return target


def _libraries(name: str) -> tuple[str, ...]:
    if name not in GPU:
        return (name,)
    from alula.engines.tensorrt.vendor import MODULES  # noqa: PLC0415 - CPU engines do without

    return MODULES[name]


def _findable(library: str) -> bool:
    if library in sys.modules:
        return sys.modules[library] is not None
    return find_spec(library) is not None


def _need(library: str, extra: str) -> None:
    """Import a vendor's library, or say which extra brings it."""
    try:
        import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise MissingExtraError(f"engine {library!r}", extra) from error
