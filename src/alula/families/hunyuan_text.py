"""The language model of HunyuanOCR: Hunyuan's dense one, with positions on four axes and places for images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from alula.core.errors import InputError, ManifestError
from alula.core.parse import get
from alula.families.decoder_settings import DecoderSettings, read_decoder_settings

FAMILY = "hunyuan_vl"
AXES = 4
"""A token's place in the sequence, and in an image its column, row and which image it is."""

Sections = Literal["tencent", "transformers"]

_SAME: Mapping[str, tuple[str, ...]] = {
    "head_dim": ("attention_head_dim",),
    "vocab_size": ("org_vocab_size",),
}


def read_text(
    config: Mapping[str, Any], *, sections: Sections = "tencent", source: str = "config.json"
) -> DecoderSettings:
    """Parse config.json, whose language model is in `text_config` or beside everything else, in either spelling.

    `sections` says which pairs of a head an axis turns: those that Tencent trained with, or those that transformers
    takes, where the pairs of a head have two axes.
    """
    if config.get("model_type") != FAMILY:
        raise InputError(f"{source}: model_type is {config.get('model_type')!r}, expected {FAMILY!r}")
    nested = config.get("text_config")
    raw = {**config, **(nested if isinstance(nested, dict) else {})}
    for name, others in _SAME.items():
        raw[name] = next((raw[each] for each in (name, *others) if raw.get(each) is not None), None)
    rope = {**(raw.get("rope_parameters") or raw.get("rope_scaling") or {})}
    spread = rope.pop("mrope_section", None) or rope.pop("xdrope_section", None)
    kind = rope.get("rope_type", rope.get("type"))
    dense = {
        **raw,
        "model_type": "hunyuan_v1_dense",
        "rope_scaling": None,
        "rope_parameters": {
            key: value
            for key, value in {**rope, "rope_type": "dynamic" if kind == "xdrope" else kind}.items()
            if key not in {"type", "xdrope_section"}
        },
    }
    settings = read_decoder_settings(
        {key: value for key, value in dense.items() if value is not None}, source
    )
    try:
        image = get(config, int, "image_token_id")
    except ManifestError as error:
        raise error.under(source) from error
    return replace(
        settings,
        sections=_sections(spread, settings.head_size // 2, source),
        apart=sections == "transformers",
        image=image,
    )


def _sections(given: Any, half: int, source: str) -> tuple[int, ...]:
    """How many pairs of a head each axis turns; some files say it as shares of them."""
    if (
        isinstance(given, list)
        and len(given) == AXES
        and all(isinstance(each, (int, float)) for each in given)
    ):
        found = tuple(
            int(each * half) if isinstance(each, float) and each < 1 else int(each) for each in given
        )
        if sum(found) == half and min(found) > 0:
            return found
    raise InputError(
        f"{source}: mrope_section is {given!r}, expected {AXES} numbers that make {half} together"
    )
