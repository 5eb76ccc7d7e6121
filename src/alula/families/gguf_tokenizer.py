"""The tokenizer in a GGUF file as tokenizer.json says it: byte-level BPE, and SentencePiece's BPE.

A file names how a text is cut before its pairs are merged ("smollm", "llama-bpe"), and llama.cpp says what the name
means. Two things that it does are not done by transformers: "smollm" stands every digit alone, and "llama-bpe" takes a
whole word that is a token without looking at its pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from alula.core.errors import InputError
from alula.families.gguf import Gguf

_CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_DIGITS_BY_THREE = _CONTRACTED + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_DIGITS_ALONE = _CONTRACTED + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
# Tokens with a part to play; all but the unknown one may begin or end a text.
PARTS = ("bos", "eos", "eot", "eom", "unknown", "padding")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cut:
    """How texts are cut before their pairs are merged: by a pattern of its own, or by GPT-2's."""

    pattern: str = ""
    digits_alone: bool = False
    whole_words: bool = False
    begins: bool = False


_LLAMA3 = _Cut(pattern=_DIGITS_BY_THREE, whole_words=True, begins=True)
_QWEN2 = _Cut(pattern=_DIGITS_ALONE)
_CUTS: Mapping[str, _Cut] = {
    "gpt-2": _Cut(),
    "smollm": _Cut(digits_alone=True),
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """The tokens of a file: texts and kinds by id, those with a part to play, and what is added to a text."""

    file: Gguf
    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    parts: Mapping[str, int]
    adds_bos: bool
    adds_eos: bool

    def text(self, part: str) -> str | None:
        """The token that plays a part; None if there is none."""
        return self.tokens[self.parts[part]] if part in self.parts else None


def read_vocabulary(file: Gguf) -> Vocabulary:
    """The tokens, once they are known to be of a model that is written and to agree in number."""
    model = file.metadata.get("tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        given = "missing" if model is None else repr(model)
        raise InputError(f"{file.path}: tokenizer.ggml.model is {given}, expected 'gpt2' or 'llama'")
    tokens = _texts(file, "tokens")
    kinds = _numbers(file, "token_type", len(tokens))
    parts = {}
    for name in PARTS:
        key = f"tokenizer.ggml.{name}_token_id"
        token = file.metadata.get(key)
        if token is None:
            continue
        if type(token) is not int or not 0 <= token < len(tokens):
            raise InputError(f"{file.path}: {key} is {token!r}, expected a token of 0..{len(tokens) - 1}")
        parts[name] = token
    begins = True if model == "llama" else _cut(file).begins
    return Vocabulary(
        file=file,
        tokens=tokens,
        kinds=(1,) * len(tokens) if kinds is None else tuple(map(int, kinds)),
        parts=parts,
        adds_bos=_flag(file, "add_bos_token", begins and "bos" in parts),
        adds_eos=_flag(file, "add_eos_token", False),
    )


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """What tokenizer.json holds."""
    made = (
        _byte_level(vocabulary)
        if vocabulary.file.metadata["tokenizer.ggml.model"] == "gpt2"
        else _sentencepiece(vocabulary)
    )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(vocabulary),
        "normalizer": None,
        "post_processor": _post_processor(vocabulary),
        **made,
    }


def _byte_level(vocabulary: Vocabulary) -> dict[str, Any]:
    cut = _cut(vocabulary.file)
    stands_whole = {token["id"] for token in _added(vocabulary)}
    letters = _byte_letters()
    alphabet = set(letters)
    vocab = {
        token if at in stands_whole or alphabet.issuperset(token) else _spelled(token, letters): at
        for at, token in enumerate(vocabulary.tokens)
    }
    steps: list[dict[str, Any]] = []
    if cut.digits_alone:
        steps.append({"type": "Digits", "individual_digits": True})
    if cut.pattern:
        steps.append(
            {
                "type": "Split",
                "pattern": {"Regex": cut.pattern},
                "behavior": "Isolated",
                "invert": False,
            }
        )
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps.append({**level, "use_regex": not cut.pattern})
    return {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {**level, "use_regex": True},
        "model": _bpe(vocab, _merges(vocabulary, vocab), ignore_merges=cut.whole_words),
    }


def _sentencepiece(vocabulary: Vocabulary) -> dict[str, Any]:
    vocab = {token: at for at, token in enumerate(vocabulary.tokens)}
    file = vocabulary.file
    if "tokenizer.ggml.merges" in file.metadata:
        merges = _merges(vocabulary, vocab)
    else:
        merges = _merges_by_score(vocabulary, vocab)
    spaced = _flag(file, "add_space_prefix", True)
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if spaced:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": _SPACE,
            "prepend_scheme": "first" if spaced else "never",
            "split": False,
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(vocab, merges, unk_token=vocabulary.text("unknown"), fuse_unk=True, byte_fallback=True),
    }


def _bpe(vocab: Mapping[str, int], merges: Sequence[tuple[str, str]], **changes: Any) -> dict[str, Any]:
    plain = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {**plain, **changes, "vocab": vocab, "merges": [list(pair) for pair in merges]}


def _added(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Tokens that are found whole in a text, before anything is cut; special ones have no text in an answer."""
    parts = set(vocabulary.parts.values())
    found = []
    for at, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        special = kind in (_UNKNOWN, _CONTROL) or at in parts
        if token and (special or kind == _USER_DEFINED):
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            found.append({"id": at, "content": token, **flags, "special": special})
    return found


def _post_processor(vocabulary: Vocabulary) -> dict[str, Any] | None:
    """What is put around a text; nothing where the file does not say so."""
    ends = {"bos": vocabulary.adds_bos, "eos": vocabulary.adds_eos}
    special: dict[str, Any] = {}
    for part, added in ends.items():
        if not added:
            continue
        token = vocabulary.text(part)
        if token is None:
            raise InputError(
                f"{vocabulary.file.path}: tokenizer.ggml.add_{part}_token is true, and {part}_token_id is missing"
            )
        special[part] = {"id": token, "ids": [vocabulary.parts[part]], "tokens": [token]}
    if not special:
        return None

    def around(sequence: str, kind: int) -> list[dict[str, Any]]:
        inner = [{"Sequence": {"id": sequence, "type_id": kind}}]
        before, after = (
            [{"SpecialToken": {"id": special[part]["id"], "type_id": kind}}] if part in special else []
            for part in ends
        )
        return [*before, *inner, *after]

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": [*around("A", 0), *around("B", 1)],
        "special_tokens": {token["id"]: token for token in special.values()},
    }


def _merges(vocabulary: Vocabulary, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pairs, strongest first, each of two tokens that make a third."""
    pairs = []
    for at, text in enumerate(_texts(vocabulary.file, "merges")):
        # The first half may begin with a space where a vocabulary is not of bytes.
        space = text.find(" ", 1)
        pair = text[:space], text[space + 1 :]
        if space < 0 or any(piece not in vocab for piece in (*pair, "".join(pair))):
            raise InputError(
                f"{vocabulary.file.path}: tokenizer.ggml.merges[{at}] is {text!r}, "
                "expected two tokens that make a third, with a space between them"
            )
        pairs.append(pair)
    return pairs


def _merges_by_score(vocabulary: Vocabulary, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pairs that SentencePiece would merge: any two tokens that make a third, by the score of what they make."""
    scores = _numbers(vocabulary.file, "scores", len(vocabulary.tokens))
    if scores is None:
        raise InputError(
            f"{vocabulary.file.path} has neither tokenizer.ggml.merges nor tokenizer.ggml.scores"
        )
    found = []
    for token, at in vocab.items():
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        found += [(float(scores[at]), *pair) for pair in halves if pair[0] in vocab and pair[1] in vocab]
    # Stable, so that of equals the one that was learned first stays first.
    found.sort(key=lambda one: (one[0], len(one[1]), len(one[2])), reverse=True)
    return [(left, right) for _, left, right in found]


def _byte_letters() -> list[str]:
    """The letter that stands for each byte: itself where it can be seen, one from U+0100 on where it cannot."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in seen}
    hidden = (byte for byte in range(256) if byte not in letters)
    letters |= {byte: chr(256 + at) for at, byte in enumerate(hidden)}
    return [letters[byte] for byte in range(256)]


def _spelled(token: str, letters: Sequence[str]) -> str:
    return "".join(letters[byte] for byte in token.encode())


def _cut(file: Gguf) -> _Cut:
    name = file.metadata.get("tokenizer.ggml.pre")
    if name not in _CUTS:
        given = "missing" if name is None else repr(name)
        raise InputError(
            f"{file.path}: tokenizer.ggml.pre is {given}, expected one of: {', '.join(_CUTS)}; "
            "build from the model's own folder, which has a tokenizer.json"
        )
    return _CUTS[str(name)]


def _texts(file: Gguf, name: str) -> tuple[str, ...]:
    key = f"tokenizer.ggml.{name}"
    value = file.metadata.get(key)
    if not isinstance(value, tuple) or not value:
        given = "missing" if value is None else "not a list of texts"
        raise InputError(f"{file.path}: {key} is {given}, expected a list of texts")
    return value


def _numbers(file: Gguf, name: str, count: int) -> np.ndarray[Any, Any] | None:
    """One number for each token; None where the file has none."""
    key = f"tokenizer.ggml.{name}"
    value = file.metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or len(value) != count:
        given = len(value) if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"{file.path}: {key} is of {given}, expected {count} numbers, one for each token")
    return value


def _flag(file: Gguf, name: str, default: bool) -> bool:
    key = f"tokenizer.ggml.{name}"
    value = file.metadata.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"{file.path}: {key} is {value!r}, expected true or false")
    return value
