"""HunyuanOCR as a checkpoint: what its parts are, which spelling it has, and what of it nobody would read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from alula.core.errors import InputError, MissingExtraError
from alula.core.listing import some
from alula.core.model import ModelSpec, Part
from alula.core.words import choice
from alula.families.checkpoint import TOKENIZER, Checkpoint, read_json
from alula.families.decoder_settings import DecoderSettings
from alula.families.hunyuan_text import FAMILY, Sections, read_text
from alula.families.weights import Weights, read_weights

if TYPE_CHECKING:
    import onnx_ir as ir

COMPATS: tuple[Sections, ...] = get_args(Sections)
"""Whose code the graphs follow where the two differ: which pairs of a head turn with which axis, and how the learned
positions are spread over a grid."""

USUAL = COMPATS[0]
"""Tencent trained it, and its own code is what it was trained with."""

_ENDS = ("eos_token_id", "eod_token_id", "eod_id")
_LAYER = r"layers\.\d+\."
_ATTENTION = rf"{_LAYER}self_attn\.([qkvo]_proj\.weight|query_layernorm\.weight|key_layernorm\.weight)"
_MLP = rf"{_LAYER}(mlp\.(gate|up|down)_proj|input_layernorm|post_attention_layernorm)\.weight"
_TEXT = rf"(embed_tokens\.weight|norm\.weight|{_ATTENTION}|{_MLP})"
_EMBEDDED = r"embeddings\.(patch_embedding|position_embedding)\.(weight|bias)"
_SEES = rf"{_LAYER}(self_attn\.[qkvo]_proj"
_ENDINGS = r"image_(newline|begin|end|sep)|(before|after)_rms\.weight|mlp\.(weight|bias)"
_KNOWN = re.compile(
    "|".join(
        (
            rf"model\.(language_model\.)?{_TEXT}",
            r"lm_head\.weight",
            rf"vit\.({_EMBEDDED}|{_SEES}|input_layernorm|post_attention_layernorm|mlp\.dense_(h_to_4h|4h_to_h))"
            rf"\.(weight|bias)|perceive\.(proj\.[02]\.(weight|bias)|{_ENDINGS}))",
            rf"model\.vision_tower\.({_EMBEDDED}|{_SEES}|layer_norm[12]|mlp\.fc[12])\.(weight|bias)"
            rf"|patch_merger\.(proj_(conv|out)\.(weight|bias)|{_ENDINGS}))",
        )
    )
)
_MADE = re.compile(r".*rotary_emb\.(original_)?inv_freq")
"""Buffers that some versions saved, and that are made from config.json."""


def parts(checkpoint: Checkpoint) -> tuple[tuple[Part, ...], DecoderSettings]:
    """The vision part and the decoder; refuses a checkpoint with weights that neither would read."""
    settings = read_text(checkpoint.config)
    _refuse_unknown(read_weights(checkpoint.root))
    try:
        from alula.families.hunyuan_vision import read_vision, vision_part  # noqa: PLC0415 - onnx_ir is for building
        from alula.families.llama import decoder_part  # noqa: PLC0415 - likewise
    except ImportError as error:
        raise MissingExtraError("describing HunyuanOCR", "build") from error
    vision = read_vision(checkpoint.config, settings.hidden)
    return (vision_part(vision), decoder_part(settings)), settings


def write(checkpoint: Checkpoint, spec: ModelSpec, part_name: str, opset: int) -> ir.Model:
    """One part in memory, as `spec.compat` has it."""
    from alula.families.hunyuan_vision import read_vision, write_vision  # noqa: PLC0415 - likewise
    from alula.families.llama import write_decoder  # noqa: PLC0415 - likewise

    compat = _compat(spec.compat)
    weights, settings = read_weights(checkpoint.root), read_text(checkpoint.config, sections=compat)
    if spec.part(part_name).name == "decoder":
        return write_decoder(weights, settings, opset)
    return write_vision(weights, read_vision(checkpoint.config, settings.hidden), grid=compat, opset=opset)


def with_compat(spec: ModelSpec, asked: str | None) -> ModelSpec:
    """The model as `--compat` asks for it; refused where there is nothing to choose."""
    if asked is None:
        return spec
    if spec.family != FAMILY:
        raise InputError(f"--compat {asked} is for HunyuanOCR ({FAMILY}); {spec.name} is {spec.family}")
    return replace(spec, compat=_compat(asked))


def ends(checkpoint: Checkpoint, settings: Iterable[Mapping[str, Any]]) -> tuple[Any, ...]:
    """Every token that a file says ends an answer: version 1.0 and 1.5 name one each, and their code stops at both.

    What `text_config` says is left out: transformers writes there the defaults of its class.
    """
    found: list[Any] = []
    for each in settings:
        for key in _ENDS:
            value = each.get(key)
            found += value if isinstance(value, list) else [] if value is None else [value]
    if (named := _tokenizers_end(checkpoint)) is not None:
        found.append(named)
    return tuple(dict.fromkeys(found))


def _tokenizers_end(checkpoint: Checkpoint) -> int | None:
    """The token that the tokenizer calls its end, by its id."""
    config, file = checkpoint.root / "tokenizer_config.json", checkpoint.root / TOKENIZER
    if not config.is_file() or not file.is_file():
        return None
    said = read_json(config).get("eos_token")
    text = said.get("content") if isinstance(said, dict) else said
    added = read_json(file).get("added_tokens") or []
    return next((int(each["id"]) for each in added if each.get("content") == text), None)


def _compat(named: str) -> Sections:
    chosen = choice("compat", named, COMPATS)
    return next(each for each in COMPATS if each == chosen)


def _refuse_unknown(weights: Weights) -> None:
    unknown = sorted(name for name in weights if not (_KNOWN.fullmatch(name) or _MADE.fullmatch(name)))
    if unknown:
        raise InputError(
            f"the checkpoint has weights that no part of HunyuanOCR has: {some(unknown)}; "
            "expected vit.* and model.*, or model.vision_tower.* and model.language_model.*"
        )
