"""Inference as the Open Inference Protocol has it, whatever carries it: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from alula import __version__
from alula.core.errors import EngineError, InputError
from alula.core.listing import twice
from alula.core.tensor import Array, Feeds
from alula.serve import records, terms
from alula.serve.catalogue import Catalogue, Served
from alula.serve.errors import Refused
from alula.serve.tensor_inputs import givers, takes
from alula.serve.tensors import Slot, Tensor
from alula.serve.terms import Priority

VERSION = "1"
"""Of every model: a bundle is served in one version, and a new one takes its place under the same name."""

NAME = "alula"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One request; without names of `outputs` all of them are wanted, without `within_s` the server's word holds.

    Nor does it say how urgent it is without a `priority`.
    """

    model: str
    version: str = ""
    id: str = ""
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[str, ...] = ()
    within_s: float | None = None
    priority: Priority | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """What a request is answered with, in the order its outputs were named in; and why by something cheaper, if so."""

    model: str
    id: str
    outputs: tuple[Tensor, ...]
    degraded: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """What a model is, and which tensors it takes and gives."""

    name: str
    platform: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]


async def infer(catalogue: Catalogue, asked: Asked) -> Answered:
    """Answer one request; it is joined with others as those of every route are."""
    service = catalogue.take(found(catalogue, asked.model, asked.version))
    terms.ask(asked.priority)
    feeds = _by_name(asked.inputs)
    wanted = _wanted(service, asked.outputs)
    outputs = await givers(service, feeds, wanted)
    return Answered(
        model=service.name,
        id=asked.id,
        outputs=tuple(Tensor(name=name, values=_defined(outputs, name)) for name in wanted),
        degraded=records.current().because,
    )


def found(catalogue: Catalogue, model: str, version: str = "") -> Served:
    """The model of this name, in its one version."""
    service = catalogue.named(model)
    if version not in {"", VERSION}:
        raise Refused(f"model {model!r} has no version {version!r}; it has {VERSION!r}", status=404)
    return service


def described(service: Served) -> Described:
    """The tensors of a model; one that writes text takes none."""
    return Described(
        name=service.name,
        platform=service.bundle.engine(service.spec.parts[-1].name).backend,
        inputs=takes(service),
        outputs=() if service.spec.writes else tuple(map(Slot.of, service.spec.parts[0].outputs)),
    )


def server_metadata() -> dict[str, Any]:
    """What the server is, and which extensions of the protocol it knows."""
    return {"name": NAME, "version": __version__, "extensions": ["binary_tensor_data"]}


def _by_name(inputs: Sequence[Tensor]) -> Mapping[str, Array]:
    feeds = {tensor.name: tensor.values for tensor in inputs}
    if len(feeds) < len(inputs):
        raise InputError(f"input {twice(tensor.name for tensor in inputs)!r} is given twice")
    if not feeds:
        raise InputError("no inputs are given; expected at least one")
    return feeds


def _wanted(service: Served, named: Sequence[str]) -> Sequence[str]:
    there = [spec.name for spec in service.spec.parts[0].outputs]
    for name in named:
        if name not in there:
            raise InputError(f"no output {name!r}; {service.name} gives {', '.join(there)}")
        if named.count(name) > 1:
            raise InputError(f"output {name!r} is asked for twice")
    return named or there


def _defined(outputs: Feeds, name: str) -> Array:
    array = outputs[name]
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise EngineError(f"the engine gives NaN for {name!r}")
    return array
