"""Which tensors each kind of served model takes, and how they become what its batcher queues.

A model takes what its engine takes. One that reads texts also takes them as BYTES in place of the ids, one that reads
images their files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from alula.codecs import Row
from alula.core.errors import InputError, ShapeError
from alula.core.tensor import Array, Feeds, TensorSpec
from alula.core.words import TOKENS
from alula.serve.arrays import Arrays, rows_of
from alula.serve.catalogue import Served
from alula.serve.errors import Refused
from alula.serve.pictures import Uploaded
from alula.serve.service import Service
from alula.serve.tensors import BYTES, DATATYPES, Slot, datatype_of
from alula.serve.uploads import Upload

TEXT, PAIR, IMAGE = "text", "text_pair", "image"
TYPES = "token_type_ids"

PAIRED = ("sequence-classification", "reranking", "question-answering")
"""Tasks whose models may read two texts as one row."""


def takes(service: Served) -> tuple[Slot, ...]:
    """The tensors that requests may bring: what is read as it comes, then those of the engine."""
    if service.spec.writes:
        return ()
    own = tuple(map(Slot.of, service.spec.parts[0].inputs))
    return (*(Slot(name=name, datatype=BYTES, shape=(-1,)) for name in _read(service)), *own)


async def givers(service: Served, feeds: Mapping[str, Array], wanted: Sequence[str]) -> Feeds:
    """The outputs for one request's tensors, all rows of them; those that are `wanted` are among them."""
    if service.spec.writes:
        raise Refused(
            f"model {service.name!r} writes text and takes no tensors; ask /v1/completions", status=400
        )
    feeds = _fitting(service, feeds)
    if isinstance(service, Service):
        return await (_of_texts if TEXT in feeds else _of_ids)(service, feeds, TOKENS in wanted)
    if isinstance(service, Uploaded):
        if IMAGE in feeds:
            files = [Upload(content=one, name=f"image {at}") for at, one in enumerate(feeds[IMAGE])]
            return stacked(await service.outputs(files))
        (pixels,) = feeds.values()
        rows_of(feeds)
        return stacked(await service.outputs_of(np.asarray(pixels, np.float32)))
    assert isinstance(service, Arrays), f"{type(service).__name__} takes no tensors"
    return await service.answer(feeds)


def _read(service: Served) -> tuple[str, ...]:
    if isinstance(service, Service):
        return (TEXT, PAIR) if service.spec.task in PAIRED else (TEXT,)
    return (IMAGE,) if isinstance(service, Uploaded) else ()


def _fitting(service: Served, feeds: Mapping[str, Array]) -> Feeds:
    """The feeds in the types of one of the ways to ask; names, datatypes and shapes of none are refused.

    Whole numbers of fewer bits are taken for those of more. Token types may be left out: they are zeros then.
    """
    slots = {slot.name: slot for slot in takes(service)}
    found = {name: _widened(array, slots[name]) if name in slots else array for name, array in feeds.items()}
    for name, array in found.items():
        if name not in slots:
            raise InputError(f"no input {name!r}; {service.name} takes {', '.join(slots)}")
        slot = slots[name]
        given = BYTES if array.dtype == np.object_ else datatype_of(str(array.dtype))
        if given != slot.datatype:
            fewer = " or one of fewer bits" if slot.datatype.startswith("INT") else ""
            raise InputError(f"input {name!r} is {given}; expected {slot.datatype}{fewer}")
        fits = len(array.shape) == len(slot.shape) and all(
            dim in {-1, size} for dim, size in zip(slot.shape, array.shape, strict=True)
        )
        if not fits:
            raise ShapeError(f"input {name!r} has shape {list(array.shape)}; expected {list(slot.shape)}")
    own = [spec.name for spec in service.spec.parts[0].inputs]
    read = [name for name in _read(service) if name in feeds]
    if mixed := [name for name in own if name in feeds and read]:
        raise InputError(f"inputs {read[0]!r} and {mixed[0]!r} are both given; expected either")
    if PAIR in read and TEXT not in read:
        raise InputError(f"input {PAIR!r} is given without {TEXT!r}")
    left_out = (TYPES,) if isinstance(service, Service) else ()
    if missing := [name for name in own if name not in (*feeds, *left_out) and not read]:
        instead = f", or {_read(service)[0]!r} in their place" if _read(service) else ""
        wanted = ", ".join(name for name in own if name not in left_out)
        raise InputError(f"input {missing[0]!r} is missing; expected {wanted}{instead}")
    return found


def _widened(array: Array, slot: Slot) -> Array:
    wanted = np.dtype(DATATYPES.get(slot.datatype, "object"))
    whole = array.dtype.kind in "iu" and wanted.kind in "iu"
    return array.astype(wanted, copy=False) if whole and np.can_cast(array.dtype, wanted) else array


async def _of_texts(service: Service, feeds: Mapping[str, Array], unpooled: bool) -> Feeds:
    firsts, seconds = _texts(feeds, TEXT), _texts(feeds, PAIR)
    if PAIR in feeds and len(firsts) != len(seconds):
        raise ShapeError(
            f"{len(firsts)} of {TEXT!r} and {len(seconds)} of {PAIR!r}; expected as many of each"
        )
    codec, only_second = service.codec, service.spec.task == "question-answering"

    def encode() -> list[Row]:
        if not seconds:
            return [replace(codec.encode(text), unpooled=unpooled) for text in firsts]
        pairs = zip(firsts, seconds, strict=True)
        return [codec.encode_pair(first, second, only_second=only_second) for first, second in pairs]

    rows, outputs = await service.answer(len(firsts), sum(map(len, (*firsts, *seconds))), encode)
    return padded(outputs, service.spec.parts[0].outputs, max(len(row.ids) for row in rows))


async def _of_ids(service: Service, feeds: Mapping[str, Array], unpooled: bool) -> Feeds:
    """Ids as they are; the batcher pads rows anew, so padding may only be at their end."""
    count = rows_of(feeds)
    if len({array.shape for array in feeds.values()}) != 1:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
        raise ShapeError(f"inputs have different shapes: {shapes}; expected one shape of all of them")
    given = feeds["input_ids"].shape[1]
    if given > service.spec.max_length:
        raise InputError(f"a row has {given} tokens; the model takes {service.spec.max_length}")

    def encode() -> list[Row]:
        return [
            replace(service.codec.encode_ids(ids), type_ids=types, unpooled=unpooled)
            for ids, types in _rows(feeds)
        ]

    _, outputs = await service.answer(count, feeds["input_ids"].size, encode)
    return padded(outputs, service.spec.parts[0].outputs, given)


def _rows(feeds: Mapping[str, Array]) -> list[tuple[list[int], tuple[int, ...]]]:
    """Ids and types of each row without its padding."""
    ids = np.asarray(feeds["input_ids"], np.int64)
    mask = np.asarray(feeds.get("attention_mask", np.ones_like(ids)), np.int64)
    types = np.asarray(feeds.get(TYPES, np.zeros_like(ids)), np.int64)
    lengths = (mask == 1).sum(1)
    wrong = (mask != (np.arange(mask.shape[1]) < lengths[:, None])).any(1) | (lengths < 1)
    if wrong.any():
        raise InputError(
            f"row {int(wrong.argmax())} of input 'attention_mask' is not ones followed by zeros; "
            "expected at least one token, and padding at the end alone"
        )
    if types.size and not 0 <= types.min() <= types.max() <= 1:
        raise InputError("input 'token_type_ids' holds other numbers than 0 and 1")
    return [(ids[at, :count].tolist(), tuple(types[at, :count].tolist())) for at, count in enumerate(lengths)]


def _texts(feeds: Mapping[str, Array], name: str) -> list[str]:
    return [
        _text(bytes(one), f"element {at} of input {name!r}") for at, one in enumerate(feeds.get(name, ()))
    ]


def _text(one: bytes, where: str) -> str:
    try:
        return one.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8: byte {error.start} is 0x{one[error.start]:02x}") from error


def padded(outputs: Sequence[Feeds], specs: Sequence[TensorSpec], length: int) -> dict[str, Array]:
    """Rows as one array for each output; what is said of each token is padded with zeros to `length`."""
    along = {spec.name for spec in specs if spec.shape[1:2] == ("length",)}
    return stacked(
        [
            {name: _longer(array, length) if name in along else array for name, array in row.items()}
            for row in outputs
        ]
    )


def _longer(array: Array, length: int) -> Array:
    return np.pad(array, [(0, length - len(array)), *[(0, 0)] * (array.ndim - 1)])


def stacked(rows: Sequence[Feeds]) -> dict[str, Array]:
    """Rows as one array for each output; they must be of one size."""
    for name, first in rows[0].items():
        for at, row in enumerate(rows):
            if row[name].shape != first.shape:
                raise InputError(
                    f"output {name!r} is {list(first.shape)} for the first row and {list(row[name].shape)} for row "
                    f"{at}; send rows of one size together"
                )
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
