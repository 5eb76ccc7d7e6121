"""The files that turn texts into tokens and back, and a chat into a text: copied, or made from a GGUF file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from alula.core.errors import InputError
from alula.families.checkpoint import Checkpoint, is_gguf
from alula.families.gguf import Gguf, read_gguf
from alula.families.gguf_tokenizer import Vocabulary, read_vocabulary, tokenizer_json

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
TEMPLATES = "additional_chat_templates"
"""The folder of chat templates that have a name."""

# llama.cpp's words for what generation_config.json calls otherwise.
_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_PENALTY = "repetition_penalty"
_BEGINS = {"bos": "bos", "padding": "pad"}
_TOKENS = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def text_files(checkpoint: Checkpoint) -> tuple[Path, ...]:
    """Those of the files that the checkpoint has; a GGUF file has them within."""
    if is_gguf(checkpoint):
        return ()
    named = sorted((checkpoint.root / TEMPLATES).glob("*.jinja"))
    return tuple(path for path in (*(checkpoint.root / name for name in FILES), *named) if path.is_file())


def write_text_files(checkpoint: Checkpoint, to: Path) -> None:
    """Put those of the files that the checkpoint has into a folder; none where it has none."""
    if is_gguf(checkpoint):
        _write(read_gguf(checkpoint.root), to)
        return
    for path in text_files(checkpoint):
        target = to / path.relative_to(checkpoint.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _write(file: Gguf, to: Path) -> None:
    vocabulary = read_vocabulary(file)
    to.mkdir(parents=True, exist_ok=True)
    for name, content in {
        "tokenizer.json": tokenizer_json(vocabulary),
        "tokenizer_config.json": _tokenizer_config(vocabulary),
        "generation_config.json": _generation_config(vocabulary),
    }.items():
        (to / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), "utf-8")
    for path, template in _templates(file).items():
        (to / path).parent.mkdir(exist_ok=True)
        (to / path).write_text(template, "utf-8")


def _tokenizer_config(vocabulary: Vocabulary) -> dict[str, Any]:
    metadata = vocabulary.file.metadata
    longest = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "add_bos_token": vocabulary.adds_bos,
        "add_eos_token": vocabulary.adds_eos,
        **({"model_max_length": longest} if isinstance(longest, int) else {}),
        **{name: text for part, name in _TOKENS.items() if (text := vocabulary.text(part)) is not None},
    }


def _generation_config(vocabulary: Vocabulary) -> dict[str, Any]:
    """What ends an answer, each once, and how tokens are chosen if the file says so."""
    parts = vocabulary.parts
    ends = [parts[part] for part in ("eos", "eot", "eom") if part in parts]
    return {
        **({"eos_token_id": list(dict.fromkeys(ends))} if ends else {}),
        **{f"{name}_token_id": parts[part] for part, name in _BEGINS.items() if part in parts},
        **_sampling(vocabulary.file),
    }


def _sampling(file: Gguf) -> dict[str, Any]:
    """How the file's makers choose tokens: they draw unless they say that the temperature is 0."""
    given: dict[str, Any] = {}
    for key, name in _SAMPLING.items():
        value = file.metadata.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{file.path}: {key} is {value!r}, expected a number")
        # Written as 32 bits: 0.6 is read as 0.6000000238.
        given[name] = value if isinstance(value, int) else round(value, 6)
    if not given:
        return {}
    if given.get("temperature") == 0:
        return {"do_sample": False, **{name: value for name, value in given.items() if name == _PENALTY}}
    return {"do_sample": True, **given}


def _templates(file: Gguf) -> dict[Path, str]:
    """Chat templates by the file they belong in."""
    found = {}
    names = file.metadata.get("tokenizer.chat_templates", ())
    for name in ("", *(names if isinstance(names, tuple) else ())):
        key = f"tokenizer.chat_template{'.' * bool(name)}{name}"
        text = file.metadata.get(key)
        if text is None:
            continue
        if not isinstance(text, str):
            raise InputError(f"{file.path}: {key} is {type(text).__name__}, expected a text")
        if name and not name.replace("_", "").replace("-", "").isalnum():
            raise InputError(
                f"{file.path}: a chat template is called {name!r}, expected letters, digits, _ and -"
            )
        found[Path(TEMPLATES) / f"{name}.jinja" if name else Path("chat_template.jinja")] = text
    return found
