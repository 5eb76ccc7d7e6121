"""Rows for models that write text: prompts, chats, and answers that are accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alula.core.errors import InputError
from alula.core.words import WRITING_TASKS
from alula.data import Dataset, read
from alula.data.dataset import Example

USER = {"role": "user", "content": "And in French?"}
CHAT = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}, USER]


def lines(folder: Path, *rows: Any) -> Path:
    path = folder / "p.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def only(folder: Path, row: Any, task: str = "text-generation") -> Example:
    (example,) = read(lines(folder, row), task).examples
    return example


@pytest.mark.parametrize("task", WRITING_TASKS)
def test_prompts_go_by_four_names_and_answers_by_two(task: str, tmp_path: Path) -> None:
    for name in ("prompt", "question"):
        example = only(tmp_path, {name: "a", "answer": " b ", "id": 3}, task)
        assert (example.texts, example.label, example.plain) == (("a",), (" b ",), False)
    assert only(tmp_path, {"text": "a"}, task).plain
    assert only(tmp_path, {"prompt": "a", "answers": ["b", "c"]}, task).label == ("b", "c")
    chat = only(tmp_path, {"messages": CHAT}, task)
    assert (chat.messages, chat.texts, chat.label) == (tuple(CHAT), ("And in French?",), None)


def test_a_chat_is_read_up_to_where_an_answer_is_due(tmp_path: Path) -> None:
    answered = [*CHAT, {"role": "assistant", "content": "Bonjour"}]
    assert only(tmp_path, {"messages": answered}).messages == tuple(CHAT)
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert only(tmp_path, {"messages": parts}).texts == ("a\nb",)


def test_lines_tables_and_csv_hold_prompts_too(tmp_path: Path) -> None:
    text = tmp_path / "p.txt"
    text.write_text("one\n\ntwo\n")
    assert [example.texts for example in read(text, "text-generation").examples] == [("one",), ("two",)]
    assert not read(text, "text-generation").examples[0].plain
    csv = tmp_path / "p.csv"
    csv.write_text('messages,answers\n"[{""role"": ""user"", ""content"": ""x""}]","[""y""]"\n')
    (row,) = read(csv, "text-generation").examples
    assert (row.messages, row.label) == (({"role": "user", "content": "x"},), ("y",))
    table = tmp_path / "p.parquet"
    pq.write_table(pa.table({"messages": [CHAT], "answer": ["Bonjour"], "other": [1]}), table)
    (kept,) = read(table, "text2text-generation").examples
    assert (kept.messages, kept.label) == (tuple(CHAT), ("Bonjour",))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"input": "a", "output": "b"},
            "p.jsonl:1: has no prompt: expected a field of prompt, question, text, messages; it has input, output",
        ),
        ({"prompt": "a", "text": "b"}, "has the fields prompt and text, which name the same thing"),
        ({"prompt": "a", "answer": "b", "answers": ["b"]}, "has the fields answers and answer; expected one"),
        ({"prompt": " "}, "field 'prompt' is empty"),
        ({"prompt": 3}, "field 'prompt' is int, expected str"),
        (
            {"prompt": "a", "answers": []},
            "field 'answers' is empty; a prompt without an answer has no such field",
        ),
        ({"prompt": "a", "answer": 3}, "field 'answer' is int, expected str or a list of str"),
        ({"messages": "hi"}, "field 'messages' is str, expected a list of messages"),
        ({"messages": ["hi"]}, "expected an object with role and content"),
        ({"messages": CHAT[1:2]}, "field 'messages' holds nothing to answer"),
    ],
)
def test_a_row_that_asks_nothing_is_named_with_its_columns(row: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read(lines(tmp_path, row), "text-generation")
    assert said in str(refused.value)


def test_columns_without_a_prompt_are_refused_before_any_row(tmp_path: Path) -> None:
    csv = tmp_path / "p.csv"
    csv.write_text("input,output\na,b\n")
    with pytest.raises(
        InputError, match="one of them prompt, question, text, messages; it has input, output"
    ):
        read(csv, "text-generation")


def test_all_rows_have_an_answer_or_none_has(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"p\.jsonl:2: has no label, and line 1 has one"):
        read(lines(tmp_path, {"prompt": "a", "answer": "b"}, {"prompt": "c"}), "text-generation")


def digest(folder: Path, *rows: Any) -> str:
    return read(lines(folder, *rows), "text-generation").digest


def test_the_digest_tells_what_is_asked_apart(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = [
        {"prompt": "a"},
        {"text": "a"},
        {"prompt": "a", "answer": "b"},
        {"messages": [{"role": "user", "content": "a"}]},
        {"messages": [{"role": "system", "content": "b"}, {"role": "user", "content": "a"}]},
    ]
    assert len({digest(tmp_path, row) for row in asked}) == len(asked)
    assert digest(tmp_path, {"prompt": "a"}) == digest(tmp_path, {"question": "a", "id": 7})


def test_rows_can_be_left_out_later(tmp_path: Path) -> None:
    data: Dataset = read(
        lines(tmp_path, {"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}), "text-generation"
    )
    fewer = data.without({1: "too long"})
    assert [example.texts for example in fewer.examples] == [("a",), ("c",)]
    assert fewer.skipped == ("too long",)
    assert fewer.digest == digest(tmp_path, {"prompt": "a"}, {"prompt": "c"})
