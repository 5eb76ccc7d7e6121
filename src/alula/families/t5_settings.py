"""The part of a T5's config.json that shapes its graphs, with the defaults transformers gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alula.core.errors import InputError, ManifestError
from alula.core.parse import get

MODEL_TYPES = ("t5", "mt5")
_ARCHITECTURES = ("T5ForConditionalGeneration", "MT5ForConditionalGeneration")
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "t5": {
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_heads": 8,
        "feed_forward_proj": "relu",
    },
    "mt5": {
        "vocab_size": 250112,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 1024,
        "num_layers": 8,
        "num_heads": 6,
        "feed_forward_proj": "gated-gelu",
    },
}
_BOTH: Mapping[str, Any] = {
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
}
_AT_LEAST_ONE = (*("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads"),)
# Both sides have half of the buckets, of which one half again counts single distances.
_FEWEST_BUCKETS = 4
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (None, True),
    "is_decoder": (None, False),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class T5Settings:
    """Sizes and choices; `farthest` is the distance from which on all are in one bucket."""

    hidden: int
    heads: int
    head_size: int
    intermediate: int
    encoder_layers: int
    decoder_layers: int
    vocab: int
    buckets: int
    farthest: int
    epsilon: float
    activation: str
    gated: bool
    scaled: bool

    @property
    def inner(self) -> int:
        """The size of all heads together, which need not be the hidden one."""
        return self.heads * self.head_size


def read_settings(config: Mapping[str, Any]) -> T5Settings:
    """Parse config.json, refusing by name what the graphs would not honour."""
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise InputError(f"config.json: model_type is {kind!r}, expected one of: {', '.join(MODEL_TYPES)}")
    for name in config.get("architectures") or []:
        if name not in _ARCHITECTURES:
            raise InputError(
                f"config.json: {name} has no graphs; those that have: {', '.join(_ARCHITECTURES)}"
            )
    for key, allowed in _REFUSED.items():
        if config.get(key) not in allowed:
            raise InputError(f"config.json: {key} is {config[key]!r}, which no graph is written for")
    given = {key: value for key, value in config.items() if value is not None}
    raw = {**_DEFAULTS[kind], **_BOTH, **given}
    raw.setdefault("num_decoder_layers", raw["num_layers"])
    try:
        return _parse(raw, scaled=kind == "t5" and _scales(raw))
    except ManifestError as error:
        raise error.under("config.json") from error


def _parse(raw: Mapping[str, Any], *, scaled: bool) -> T5Settings:
    for key in _AT_LEAST_ONE:
        if get(raw, int, key) < 1:
            raise ManifestError(f"is {raw[key]}, expected at least 1", key)
    buckets, farthest = (
        get(raw, int, f"relative_attention_{what}") for what in ("num_buckets", "max_distance")
    )
    if buckets < _FEWEST_BUCKETS:
        raise ManifestError(
            f"is {buckets}, expected at least {_FEWEST_BUCKETS}", "relative_attention_num_buckets"
        )
    if farthest <= buckets // 2:
        raise ManifestError(
            f"is {farthest}, expected more than {buckets // 2}, the distances with a bucket of their own",
            "relative_attention_max_distance",
        )
    activation, gated = _feed_forward(raw)
    return T5Settings(
        hidden=get(raw, int, "d_model"),
        heads=get(raw, int, "num_heads"),
        head_size=get(raw, int, "d_kv"),
        intermediate=get(raw, int, "d_ff"),
        encoder_layers=get(raw, int, "num_layers"),
        decoder_layers=get(raw, int, "num_decoder_layers"),
        vocab=get(raw, int, "vocab_size"),
        buckets=buckets,
        farthest=farthest,
        epsilon=get(raw, float, "layer_norm_epsilon"),
        activation=activation,
        gated=gated,
        scaled=scaled,
    )


def _feed_forward(raw: Mapping[str, Any]) -> tuple[str, bool]:
    """The activation, and whether it gates a second product."""
    said = get(raw, str, "feed_forward_proj")
    gate, _, name = said.rpartition("-")
    if gate not in {"", "gated"} or not name:
        raise ManifestError(f"is {said!r}, expected an activation, or gated- and one", "feed_forward_proj")
    # As transformers has it: only in this word is gelu the tanh form, and both keys weigh more where they are given.
    read = {"dense_act_fn": "gelu_new" if said == "gated-gelu" else name, "is_gated_act": gate == "gated"}
    chosen = {**read, **{key: raw[key] for key in read if key in raw}}
    return get(chosen, str, "dense_act_fn"), get(chosen, bool, "is_gated_act")


def _scales(raw: Mapping[str, Any]) -> bool:
    """Whether logits are scaled, which original T5 does and 1.1 and FLAN do not.

    Their files say it by tie_word_embeddings; those that transformers 5 saved have a key of its own for it, and
    tie_word_embeddings true whatever the weights are.
    """
    if "scale_decoder_outputs" in raw:
        return get(raw, bool, "scale_decoder_outputs")
    return raw.get("tie_word_embeddings") is not False
