"""Models that write text: decoder-only ones, from safetensors or a GGUF file, and T5 with its kin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from alula.core.errors import InputError, MissingExtraError
from alula.core.model import ModelSpec, Part
from alula.core.profile import Range
from alula.core.words import WRITING_TASKS, choice
from alula.families import hunyuan
from alula.families.checkpoint import Checkpoint, architecture_of, is_gguf, read_json
from alula.families.decoder_settings import FAMILIES as DECODERS
from alula.families.decoder_settings import read_decoder_settings
from alula.families.hunyuan_text import FAMILY as HUNYUAN
from alula.families.sentence import token_limit
from alula.families.shipped import taught
from alula.families.t5_settings import MODEL_TYPES as T5
from alula.families.t5_settings import read_settings as read_t5_settings
from alula.families.weights import Weights, read_weights

if TYPE_CHECKING:
    import onnx_ir as ir

GENERATION, GENERATION2 = WRITING_TASKS
FAMILIES = (*DECODERS, *T5, HUNYUAN)
"""The model types that are written."""

GENERATION_CONFIG = "generation_config.json"

_CAUSAL = ("ForCausalLM", "LMHeadModel")
_SOURCE = 512
"""Tokens of a source where no tokenizer says how many: what T5 was trained with; its distances have no end."""


def writes(checkpoint: Checkpoint, task: str | None) -> bool:
    """Whether a checkpoint is to write text: its class says so, unless it is a sentence encoder or a task is named."""
    if is_gguf(checkpoint):
        return True
    if task is not None:
        return task in WRITING_TASKS
    named, kind = architecture_of(checkpoint.config), checkpoint.config.get("model_type")
    if named.endswith(_CAUSAL):
        return not (checkpoint.root / "modules.json").is_file()
    return kind == HUNYUAN or (kind in T5 and not named.endswith("EncoderModel"))


def describe_writer(
    checkpoint: Checkpoint, task: str | None, pooling: str | None, asked: Mapping[str, Range]
) -> ModelSpec:
    """What such a checkpoint is written as; types that nobody has written are refused by name."""
    config, kind = checkpoint.config, checkpoint.config.get("model_type")
    named = architecture_of(config) or str(kind)
    if kind not in FAMILIES:
        raise InputError(
            f"{named} (model type {kind!r}) is not among the models that write text which are built so far: "
            f"{', '.join(FAMILIES)}"
        )
    right = GENERATION2 if kind in T5 else GENERATION
    if task is not None and choice("task", task, WRITING_TASKS) != right:
        raise InputError(f"task {task!r} is not for {named} (model type {kind!r}), which is for {right}")
    if pooling:
        raise InputError(f"pooling {pooling!r} is for embeddings; the task is {right}")
    if kind == HUNYUAN:
        return _hunyuan(checkpoint, named)
    parts, vocab, longest = _seq2seq(checkpoint, asked) if kind in T5 else _decoder(checkpoint, named)
    settings = _settings(checkpoint)
    ends = _ids(settings, "eos_token_id", vocab)
    padding = _ids(settings, "pad_token_id", vocab)
    return ModelSpec(
        name=checkpoint.name,
        digest=checkpoint.digest,
        revision=checkpoint.revision,
        architecture=named,
        family=str(kind),
        task=right,
        parts=parts,
        max_length=longest,
        vocab_size=vocab,
        pad_id=next(iter((*padding, *ends)), 0),
        end_ids=ends,
        start_id=_start(settings, padding, vocab) if kind in T5 else -1,
    )


def _hunyuan(checkpoint: Checkpoint, named: str) -> ModelSpec:
    """HunyuanOCR, as Tencent's code has it unless something else is asked for."""
    parts, settings = hunyuan.parts(checkpoint)
    said = _settings(checkpoint)
    found = hunyuan.ends(checkpoint, (checkpoint.config, said))
    ends = _ids({"eos_token_id": list(found)}, "eos_token_id", settings.vocab)
    assert settings.image is not None
    return ModelSpec(
        name=checkpoint.name,
        digest=checkpoint.digest,
        revision=checkpoint.revision,
        architecture=named,
        family=HUNYUAN,
        task=GENERATION,
        parts=parts,
        max_length=settings.positions,
        vocab_size=settings.vocab,
        pad_id=next(iter((*_ids(said, "pad_token_id", settings.vocab), *ends)), 0),
        end_ids=ends,
        image_id=settings.image,
        compat=hunyuan.USUAL,
        taught=taught(checkpoint.root),
    )


def write_part(checkpoint: Checkpoint, spec: ModelSpec, part_name: str, opset: int) -> ir.Model:
    """One part in memory; its weights are read from the checkpoint when the model is saved."""
    from alula.families import llama, t5  # noqa: PLC0415 - onnx_ir is for building only

    if spec.family == HUNYUAN:
        return hunyuan.write(checkpoint, spec, part_name, opset)
    if spec.family in T5:
        return t5.write(checkpoint, part_name, opset)
    spec.part(part_name)
    settings = read_decoder_settings(checkpoint.config, _source(checkpoint))
    return llama.write_decoder(weights_of(checkpoint), settings, opset)


def weights_of(checkpoint: Checkpoint) -> Weights:
    """Every weight by HuggingFace's names, each still where it lies."""
    if not is_gguf(checkpoint):
        return read_weights(checkpoint.root)
    from alula.families.gguf_decoder import read_decoder  # noqa: PLC0415 - for such files only

    return read_decoder(checkpoint.root).weights


def _decoder(checkpoint: Checkpoint, named: str) -> tuple[tuple[Part, ...], int, int]:
    if not named.endswith(_CAUSAL):
        raise InputError(f"{named} has no head that writes text; expected a class such as LlamaForCausalLM")
    settings = read_decoder_settings(checkpoint.config, _source(checkpoint))
    try:
        from alula.families.llama import decoder_part  # noqa: PLC0415 - onnx_ir is for building only
    except ImportError as error:
        raise MissingExtraError("describing a decoder", "build") from error
    return (decoder_part(settings),), settings.vocab, settings.positions


def _seq2seq(checkpoint: Checkpoint, asked: Mapping[str, Range]) -> tuple[tuple[Part, ...], int, int]:
    """A longer source than usual is taken where it is asked for: no table of positions ends."""
    settings = read_t5_settings(checkpoint.config)
    try:
        from alula.families.t5 import parts  # noqa: PLC0415 - likewise
    except ImportError as error:
        raise MissingExtraError("describing a T5", "build") from error
    longest = token_limit(checkpoint.root, _SOURCE)
    if "source" in asked:
        longest = max(longest, asked["source"].max)
    return parts(settings), settings.vocab, longest


def _settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json with what generation_config.json says of the same keys, which transformers goes by."""
    path = checkpoint.root / GENERATION_CONFIG
    said = read_json(path) if path.is_file() else {}
    return {**checkpoint.config, **{key: value for key, value in said.items() if value is not None}}


def _ids(settings: Mapping[str, Any], key: str, vocab: int) -> tuple[int, ...]:
    """One token or several, none named twice; some files say -1 for none."""
    value = settings.get(key)
    several = value if isinstance(value, list) else [] if value is None else [value]
    for token in several:
        if type(token) is not int or token >= vocab:
            raise InputError(f"{key} is {value!r}, expected ids of tokens up to {vocab - 1}")
    return tuple(dict.fromkeys(token for token in several if token >= 0))


def _start(settings: Mapping[str, Any], padding: tuple[int, ...], vocab: int) -> int:
    """What a T5's answers begin with: where no key says it, padding does, as it was trained."""
    for key in ("decoder_start_token_id", "bos_token_id"):
        if found := _ids(settings, key, vocab):
            return found[0]
    if not padding:
        raise InputError("config.json names neither decoder_start_token_id nor pad_token_id to begin with")
    return padding[0]


def _source(checkpoint: Checkpoint) -> str:
    return checkpoint.root.name if is_gguf(checkpoint) else "config.json"
