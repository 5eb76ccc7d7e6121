"""What the sentence-transformers files of a checkpoint say about pooling, length and scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alula.core.errors import InputError, ManifestError
from alula.core.parse import get
from alula.core.words import POOLINGS, choice
from alula.families.checkpoint import Checkpoint, module_folders, read_json

_FLAGS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# tokenizer_config.json says 1e30 where nobody set a length.
_SANE_LENGTH = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Dense:
    """A linear layer after pooling, its weights in a folder of their own."""

    folder: Path
    activation: str
    given: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedding:
    """How token states become one vector."""

    pooling: str
    dense: tuple[Dense, ...]
    normalize: bool

    def size(self, hidden: int) -> int:
        """The size of the vector, given that of a token state."""
        for layer in self.dense:
            if layer.given != hidden:
                raise InputError(f"{layer.folder.name}: takes {layer.given} features, it is given {hidden}")
            hidden = layer.size
        return hidden


def read_embedding(checkpoint: Checkpoint, named: str | None = None) -> Embedding:
    """Read modules.json and the folders it names; without it, mean pooling and nothing more.

    `named` pools in another way than the checkpoint says.
    """
    pooling, dense, normalize = named or "mean", [], False
    for position, (kind, folder) in enumerate(module_folders(checkpoint.root)):
        path = checkpoint.root / folder
        if kind == "Transformer" and position == 0 and folder in {"", "."}:
            continue
        if normalize or kind not in {"Pooling", "Dense", "Normalize", "Dropout"}:
            raise InputError(
                f"modules.json: module {position} is {kind} in {folder!r}; expected a Transformer in '', "
                "then Pooling, Dense, Normalize"
            )
        if kind == "Pooling":
            pooling = named or _pooling(path)
        elif kind == "Dense":
            dense.append(_dense(path))
        normalize = kind == "Normalize"
    return Embedding(pooling=choice("pooling", pooling, POOLINGS), dense=tuple(dense), normalize=normalize)


def token_limit(root: Path, tokens: int) -> int:
    """The most tokens a text may have, by the model, its tokenizer and its sentence-transformers settings."""
    named = [read_json(path).get("max_seq_length") for path in root.glob("sentence_*_config.json")]
    if (root / "tokenizer_config.json").is_file():
        named.append(read_json(root / "tokenizer_config.json").get("model_max_length"))
    sane = [int(limit) for limit in named if isinstance(limit, (int, float)) and 0 < limit < _SANE_LENGTH]
    return min([tokens, *sane])


def score_function(checkpoint: Checkpoint) -> str:
    """What a cross-encoder applies to its one logit: sigmoid unless its settings name another."""
    config = checkpoint.config
    named = config.get("sbert_ce_default_activation_function")
    named = (config.get("sentence_transformers") or {}).get("activation_fn", named)
    path = checkpoint.root / "config_sentence_transformers.json"
    if path.is_file():
        named = read_json(path).get("activation_fn") or named
    return _torch_function(str(named), "config.json: activation_fn") if named else "sigmoid"


def _pooling(folder: Path) -> str:
    config = read_json(folder / "config.json")
    where = f"{folder.name}/config.json"
    if config.get("include_prompt") is False:
        raise InputError(f"{where}: include_prompt is false; pooling without the prompt is not written")
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else named or [_FLAGS[key] for key in _FLAGS if config.get(key)]
    if len(modes) > 1:
        raise InputError(f"{where}: pools by {' and '.join(modes)} at once; name one of them")
    return choice(f"{where}: pooling", modes[0], POOLINGS) if modes else "mean"


def _dense(folder: Path) -> Dense:
    config = read_json(folder / "config.json")
    where = f"{folder.name}/config.json"
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    try:
        given, size = get(config, int, "in_features"), get(config, int, "out_features")
    except ManifestError as error:
        raise error.under(where) from error
    return Dense(folder=folder, activation=_torch_function(str(activation), where), given=given, size=size)


def _torch_function(named: str, where: str) -> str:
    known: Mapping[str, Any] = {
        "Identity": "none",
        "Sigmoid": "sigmoid",
        "Softmax": "softmax",
        "Tanh": "tanh",
        "ReLU": "relu",
        "GELU": "gelu",
        "SiLU": "silu",
    }
    kind = named.rpartition(".")[2].partition("(")[0]
    if kind not in known:
        raise InputError(f"{where}: activation {named!r} is not one of: {', '.join(known)}")
    return str(known[kind])
