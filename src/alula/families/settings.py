"""The part of config.json that shapes an encoder, with the defaults transformers gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alula.core.errors import InputError, ManifestError
from alula.core.parse import get

_COMMON: Mapping[str, Any] = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "bert": _COMMON,
    "electra": _COMMON,
    "roberta": {**_COMMON, "pad_token_id": 1},
    "mpnet": {**_COMMON, "pad_token_id": 1},
    "distilbert": _COMMON,
    "traced": {**_COMMON, "type_vocab_size": 0, "num_attention_heads": 1, "num_hidden_layers": 1},
}
# Whatever config.json says, the models have these.
_FIXED: Mapping[str, Mapping[str, Any]] = {
    "mpnet": {"type_vocab_size": 0},
    "distilbert": {"type_vocab_size": 0, "layer_norm_eps": 1e-12},
    "traced": {"intermediate_size": None, "embedding_size": None},
}
_RENAMED: Mapping[str, Mapping[str, str]] = {
    "distilbert": {
        "dim": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
        "activation": "hidden_act",
        "hidden_dim": "intermediate_size",
    },
}
_AT_LEAST_ONE = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "vocab_size"),
    *("intermediate_size", "embedding_size"),
)
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "is_encoder_decoder": (None, False),
    "add_cross_attention": (None, False),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
}
# Model types that count positions from pad_token_id + 1, those without a module of their own included.
_PADDED_POSITIONS = {
    *("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "roberta-prelayernorm"),
    *("xmod", "data2vec-text", "longformer", "ibert"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Sizes and choices; `tokens` is how many of `positions` a text can use.

    `intermediate` and `embedding` are None where config.json does not say: the weights do then.
    """

    hidden: int
    layers: int
    heads: int
    epsilon: float
    activation: str
    positions: int
    tokens: int
    types: int
    vocab: int
    pad_id: int
    intermediate: int | None
    embedding: int | None

    @property
    def square(self) -> tuple[int, int]:
        """The size of a layer from token states to as many features."""
        return self.hidden, self.hidden


def read_settings(family: str, config: Mapping[str, Any]) -> Settings:
    """Parse config.json for a family, refusing by name what its graphs would not honour."""
    if family != "traced":
        _refuse(config)
    raw = {**_DEFAULTS[family], **{key: value for key, value in config.items() if value is not None}}
    raw.update({ours: raw[theirs] for theirs, ours in _RENAMED.get(family, {}).items() if theirs in raw})
    raw.update(_FIXED.get(family, {}))
    try:
        settings = _parse(raw, _positions_skipped(family, config, raw["pad_token_id"]))
    except ManifestError as error:
        raise error.under("config.json") from error
    if settings.hidden % settings.heads:
        raise InputError(
            f"config.json: {settings.heads} heads do not divide a hidden size of {settings.hidden}"
        )
    return settings


def _parse(raw: Mapping[str, Any], skipped: int) -> Settings:
    for key in _AT_LEAST_ONE:
        if (size := _size(raw, key)) is not None and size < 1:
            raise ManifestError(f"is {size}, expected at least 1", key)
    positions = get(raw, int, "max_position_embeddings")
    if positions <= skipped:
        raise ManifestError(
            f"is {positions}, of which no text can use the first {skipped}", "max_position_embeddings"
        )
    return Settings(
        hidden=get(raw, int, "hidden_size"),
        layers=get(raw, int, "num_hidden_layers"),
        heads=get(raw, int, "num_attention_heads"),
        epsilon=get(raw, float, "layer_norm_eps"),
        activation=get(raw, str, "hidden_act"),
        positions=positions,
        tokens=positions - skipped,
        types=get(raw, int, "type_vocab_size"),
        vocab=get(raw, int, "vocab_size"),
        pad_id=get(raw, int, "pad_token_id"),
        intermediate=_size(raw, "intermediate_size"),
        embedding=_size(raw, "embedding_size"),
    )


def _size(raw: Mapping[str, Any], key: str) -> int | None:
    return None if raw.get(key) is None else get(raw, int, key)


def _positions_skipped(family: str, config: Mapping[str, Any], pad_id: int) -> int:
    """How many rows of the position table no token ever takes."""
    if family == "mpnet":
        return 2  # MPNet counts from 2 whatever its pad id is.
    return pad_id + 1 if config.get("model_type") in _PADDED_POSITIONS else 0


def _refuse(config: Mapping[str, Any]) -> None:
    for key, allowed in _REFUSED.items():
        if config.get(key) not in allowed:
            raise InputError(f"config.json: {key} is {config[key]!r}, which no graph is written for")
