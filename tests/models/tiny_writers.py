"""A decoder of one layer as functions of arrays, with and without an encoder: what a cache gets wrong shows in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds, TensorSpec
from alula.engines.dense import Loaded
from alula.engines.fake import session

VOCABULARY, HEADS, SIZE = 23, 2, 4
POISON = VOCABULARY - 1
"""A token whose key and value are NaN, as those of a model that leaves its range."""

AXES: Mapping[str, Range] = {
    "batch": Range(1, 2, 8),
    "length": Range(1, 4, 48),
    "past": Range(0, 8, 48, least=0),
    "total": Range(1, 12, 48),
    "answers": Range(1, 1, 48),
}
IN_PLACE: Mapping[str, Range] = {"past": Range(1, 8, 48), "total": Range(2, 12, 96)}
"""Of a past that comes back as wide as it was: the new tokens lie beside all that it may hold."""
SOURCE = Range(1, 4, 24)

Floats = NDArray[np.floating[Any]]

_RANDOM = np.random.default_rng(11)
_WIDTH = HEADS * SIZE
_TABLE = _RANDOM.standard_normal((VOCABULARY, _WIDTH))
_PLACES = _RANDOM.standard_normal((64, _WIDTH)) * 0.5
_QUERY, _KEY, _VALUE, _LOOK = _RANDOM.standard_normal((4, _WIDTH, _WIDTH)) / 2
_HEAD = _RANDOM.standard_normal((_WIDTH, VOCABULARY))


def _ids(name: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name=name, dtype="int64", shape=shape)


def _pair(kind: str, axis: str) -> tuple[TensorSpec, ...]:
    shape = ("batch", HEADS, axis, SIZE)
    return tuple(
        TensorSpec(name=f"{kind}.0.{what}", dtype="float32", shape=shape) for what in ("key", "value")
    )


_OWN = (
    _ids("input_ids", "batch", "length"),
    _ids("position_ids", "batch", "length"),
    _ids("attention_mask", "batch", "total"),
    _ids("answers", "answers"),
)
_LOGITS = TensorSpec(name="logits", dtype="float32", shape=("batch", "answers", VOCABULARY))
_STATES = TensorSpec(name="states", dtype="float32", shape=("batch", "source", _WIDTH))
_READS = (_ids("input_ids", "batch", "source"), _ids("attention_mask", "batch", "source"))
_SEEN = _ids("encoder_attention_mask", "batch", "source")


def _heads(x: Floats) -> Floats:
    return x.reshape(*x.shape[:2], HEADS, SIZE).transpose(0, 2, 1, 3)


def _attend(query: Floats, key: Floats, value: Floats, seen: NDArray[np.bool_]) -> Floats:
    """Every key and value counts, with weight 0 where it is not seen: NaN that is hidden is NaN all the same."""
    scores = query @ key.transpose(0, 1, 3, 2) + np.where(seen[:, None], 0.0, -1e4)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    context = (weights / weights.sum(-1, keepdims=True)) @ value
    joined: Floats = context.transpose(0, 2, 1, 3).reshape(len(query), query.shape[2], -1)
    return joined


def decode(feeds: Feeds) -> Feeds:
    """One call of the decoder; it looks at a source where it is given one."""
    given: dict[str, NDArray[Any]] = dict(feeds)
    ids, mask = given["input_ids"], given["attention_mask"].astype(bool)
    x = _TABLE[ids] + _PLACES[given["position_ids"]]
    new = [_heads(x @ weights) for weights in (_KEY, _VALUE)]
    for each in new:
        each.transpose(0, 2, 1, 3)[ids == POISON] = np.nan
    key, value = (
        np.concatenate([given[f"past.0.{what}"], each], axis=2)
        for what, each in zip(("key", "value"), new, strict=True)
    )
    total, length = mask.shape[1], ids.shape[1]
    assert total == key.shape[2], "the mask is not as wide as what is seen"
    before = np.arange(total) <= np.arange(total - length, total)[:, None]
    x = x + _attend(_heads(x @ _QUERY), key, value, mask[:, None] & before)
    if "cross.0.key" in given:
        seen = given["encoder_attention_mask"].astype(bool)[:, None]
        x = x + _attend(_heads(x @ _LOOK), given["cross.0.key"], given["cross.0.value"], seen)
    logits = (x @ _HEAD)[:, given["answers"]]
    made = {"logits": logits, "present.0.key": key, "present.0.value": value}
    return {name: array.astype(np.float32) for name, array in made.items()}


def decode_in_place(feeds: Feeds) -> Feeds:
    """The same, with a past that comes back as wide as it was."""
    width = feeds["past.0.key"].shape[2]
    return {
        name: given[:, :, given.shape[2] - width :] if name.startswith("present.") else given
        for name, given in decode(feeds).items()
    }


def encode(feeds: Feeds) -> Feeds:
    """States of a source: each token with a share of the mean of all."""
    given: dict[str, NDArray[Any]] = dict(feeds)
    mask = given["attention_mask"][..., None]
    x = _TABLE[given["input_ids"]] * mask
    mean = x.sum(1, keepdims=True) / mask.sum(1, keepdims=True)
    return {"states": (x + mean).astype(np.float32)}


def cross(feeds: Feeds) -> Feeds:
    """Keys and values of a source's states."""
    states = np.asarray(feeds["states"], np.float32)
    return {
        f"cross.0.{what}": _heads(states @ weights).astype(np.float32)
        for what, weights in (("key", _KEY), ("value", _VALUE))
    }


def parts(
    *, reads: bool = False, grows: bool = True, axes: Mapping[str, Range] | None = None
) -> dict[str, Loaded]:
    """The parts as sessions, with an encoder where it `reads`; `axes` are sizes other than the usual ones."""
    sizes = {**AXES, **({} if grows else IN_PLACE), "source": SOURCE, **(axes or {})}
    looks = (_SEEN, *_pair("cross", "source")) if reads else ()
    inputs = (*_OWN, *looks, *_pair("past", "past"))
    outputs = (_LOGITS, *_pair("present", "total" if grows else "past"))
    made = {"decoder": loaded(inputs, outputs, Profile(sizes), decode if grows else decode_in_place)}
    if reads:
        made["encoder"] = loaded(_READS, (_STATES,), Profile(sizes), encode)
        made["cross"] = loaded((_STATES,), _pair("cross", "source"), Profile(sizes), cross)
    return made


def loaded(
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    profile: Profile,
    function: Callable[[Feeds], Feeds],
) -> Loaded:
    return Loaded(session=session(inputs, outputs, profile, function), profile=profile)
