"""The small tokenizer: nothing that it cannot say, its special tokens, and the published prompts as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training.characters import ALPHABET
from training.prompts import FIELDS, PROMPTS, fields_prompt
from training.tokenizer import (
    IMAGE,
    IMAGE_BEGIN,
    IMAGE_END,
    SPECIAL,
    SYSTEM,
    TAGS,
    USER,
    build,
    write_tokenizer,
)

from alula.codecs.templates import compiled
from alula.documents import TASKS
from alula.ocr import Ask
from alula.ocr.prompts import Version, prompt


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40).filter(lambda text: "｜>" not in text))
def test_any_text_comes_back(text: str) -> None:
    tokenizer = build()
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_a_character_of_pages_is_one_token_and_so_is_a_prompt() -> None:
    tokenizer = build()
    singles = [*ALPHABET, *SPECIAL, *TAGS, *(prompt for kinds in PROMPTS.values() for prompt in kinds)]
    assert {single: len(tokenizer.encode(single).ids) for single in singles} == dict.fromkeys(singles, 1)
    assert tokenizer.get_vocab_size() % 64 == 0
    before, after = FIELDS[0]
    tokens = tokenizer.encode(fields_prompt(["ab", "c"])).tokens
    assert tokens == [before, "'", "a", "b", "'", ",", "'", "c", "'", after]


def test_a_chat_with_a_page_is_what_the_model_was_trained_on(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    template = compiled((tmp_path / "chat_template.jinja").read_text("utf-8"), "chat_template.jinja")
    words, begin = PROMPTS["text"][0], SPECIAL[0]
    asked = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": words}]}

    def render(*messages: dict[str, Any]) -> str:
        return template.render({"messages": messages, "bos_token": begin})

    text = render({"role": "system", "content": ""}, asked)
    assert text == begin + SYSTEM + IMAGE_BEGIN + IMAGE + IMAGE_END + words + USER
    assert render(asked) == begin + IMAGE_BEGIN + IMAGE + IMAGE_END + words + USER
    config = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    assert config["extra_special_tokens"]["image_token"] == IMAGE


def test_prompts_are_those_that_alula_asks_with() -> None:
    versions: tuple[Version, ...] = ("1.0", "1.5")
    assert set(PROMPTS) < set(TASKS)
    for task in TASKS:
        if task in PROMPTS:
            asks = (Ask(task=task), Ask(task=task, language="zh"))
            assert set(PROMPTS[task]) == {prompt(ask, version) for ask in asks for version in versions}
    fields = ("a", "总")
    for kind, ask in enumerate(
        (Ask(task="fields", fields=fields), Ask(task="fields", fields=fields, language="zh"))
    ):
        assert fields_prompt(fields, kind) == prompt(ask)


@pytest.mark.parametrize("kind", [0, 1])
def test_names_of_fields_stand_between_the_published_words(kind: int) -> None:
    before, after = FIELDS[kind]
    assert fields_prompt(["a", "b"], kind) == f"{before}'a','b'{after}"
