from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.core.errors import InputError
from alula.core.words import TEXT_TASKS
from alula.data import MAX_BYTES, Dataset, read
from alula.data.dataset import Example, digest_of

Write = Callable[[str, "str | bytes"], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def made(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return made


def texts(data: Dataset) -> list[tuple[str, ...]]:
    return [example.texts for example in data.examples]


def test_json_lines_are_read_with_their_lines(write: Write) -> None:
    path = write("a.jsonl", '{"text": "one"}\n\n  \n{"text": "two", "id": 7}\n')
    data = read(path, "embeddings")
    assert texts(data) == [("one",), ("two",)]
    assert [example.line for example in data.examples] == [1, 4]
    assert (data.path, data.skipped, data.labelled, data.paired) == (path, (), False, False)


@pytest.mark.parametrize(
    "names",
    [("text", "text_pair"), ("query", "passage"), ("question", "context"), ("sentence1", "sentence2")],
)
def test_pairs_go_by_four_names(write: Write, names: tuple[str, str]) -> None:
    path = write("a.jsonl", json.dumps(dict(zip(names, ("a", "b"), strict=True))))
    for task in ("embeddings", "reranking", "question-answering", "sequence-classification"):
        data = read(path, task)
        assert texts(data) == [("a", "b")]
        assert data.paired


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_either_line_end_and_a_byte_order_mark_change_nothing(write: Write, end: str, mark: bytes) -> None:
    lines = {
        "a.txt": ["größer", "", "  spaced  "],
        "a.jsonl": ['{"text": "größer"}', "", '{"text": "  spaced  "}'],
        "a.csv": ["text", "größer", "", "  spaced  "],
    }
    digests = set()
    for name, content in lines.items():
        data = read(write(name, mark + (end.join(content) + end).encode()), "embeddings")
        assert texts(data) == [("größer",), ("  spaced  ",)]
        digests.add(data.digest)
    assert len(digests) == 1


def test_lines_end_at_line_feeds_alone(write: Write) -> None:
    assert texts(read(write("a.txt", "a\u2028b\x0bc\x85d\n"), "embeddings")) == [("a\u2028b\x0bc\x85d",)]


def test_a_last_line_needs_no_end(write: Write) -> None:
    assert texts(read(write("a.txt", "a\nb"), "embeddings")) == [("a",), ("b",)]


def test_a_very_long_line_is_read(write: Write) -> None:
    long = "word " * 300_000
    for name, content in (
        ("a.txt", long),
        ("a.jsonl", json.dumps({"text": long})),
        ("a.csv", f"text\n{long}\n"),
    ):
        assert texts(read(write(name, content), "embeddings")) == [(long,)]


def test_cells_may_hold_commas_quotes_and_line_ends(write: Write) -> None:
    path = write("a.csv", 'id, text ,label\n1,"a, ""b""\nc",yes\n2,d,no\n')
    data = read(path, "sequence-classification")
    assert [(e.texts, e.label, e.line) for e in data.examples] == [
        (('a, "b"\nc',), "yes", 2),
        (("d",), "no", 4),
    ]


def test_cells_hold_what_json_would(write: Write) -> None:
    scored = read(write("a.csv", "sentence1,sentence2,score\na,b,0.5\n"), "embeddings")
    assert scored.examples[0].label == 0.5
    several = read(write("b.csv", 'text,labels\na,"[""x"", ""y""]"\n'), "sequence-classification")
    assert several.examples[0].label == ("x", "y")
    spans = read(write("c.csv", 'text,labels\nAnna,"[[0, 4, ""NAME""]]"\n'), "token-classification")
    assert spans.examples[0].label == ((0, 4, "NAME"),)
    answer = read(write("d.csv", "question,context,answer\nq,some text,text\n"), "question-answering")
    assert answer.examples[0].label == ("text",)
    unlabelled = read(write("e.csv", "text,label\na,\nb,\n"), "sequence-classification")
    assert not unlabelled.labelled


@pytest.mark.parametrize(
    ("task", "row", "label"),
    [
        ("sequence-classification", {"text": "a", "label": "yes"}, "yes"),
        ("sequence-classification", {"text": "a", "label": 1}, "1"),
        ("sequence-classification", {"text": "a", "label": 1.5}, 1.5),
        ("sequence-classification", {"text": "a", "labels": []}, ()),
        ("sequence-classification", {"text": "a", "labels": ["x", 2]}, ("x", "2")),
        ("sequence-classification", {"text": "a", "label": None}, None),
        ("embeddings", {"sentence1": "a", "sentence2": "b", "label": 3}, 3.0),
        ("embeddings", {"text": "a", "label": "of another task"}, None),
        ("reranking", {"query": "a", "passage": "b", "label": 1}, 1.0),
        ("token-classification", {"text": "ab", "labels": []}, ()),
        ("token-classification", {"text": "ab", "labels": [[0, 1, "X"]]}, ((0, 1, "X"),)),
        (
            "token-classification",
            {"text": "ab", "labels": [{"start": 1, "end": 2, "label": "X"}]},
            ((1, 2, "X"),),
        ),
        ("question-answering", {"question": "a", "context": "b c", "answers": ["b", "c"]}, ("b", "c")),
        (
            "question-answering",
            {"question": "a", "context": "b c", "answers": {"text": ["b"], "answer_start": [0]}},
            ("b",),
        ),
    ],
)
def test_a_label_is_what_its_task_needs(
    write: Write, task: str, row: dict[str, object], label: object
) -> None:
    example = read(write("a.jsonl", json.dumps(row)), task).examples[0]
    assert example.label == label
    assert type(example.label) is type(label)


@pytest.mark.parametrize(
    ("task", "row", "error"),
    [
        ("embeddings", '{"text": 3}', "field 'text' is int, expected str"),
        ("embeddings", '{"text": ["a"]}', "field 'text' is list, expected str"),
        ("embeddings", '{"text": "a", "text_pair": 3}', "field 'text_pair' is int, expected str"),
        ("embeddings", '{"text": " "}', "field 'text' is empty"),
        ("embeddings", r'{"text": "ab\u0000"}', "field 'text' has a NUL at character 2"),
        (
            "embeddings",
            r'{"text": "a\ud83d"}',
            "field 'text' has the lone surrogate U+D83D at character 1",
        ),
        (
            "embeddings",
            '{"txt": "a"}',
            "has no text: expected a field of text, query, question, sentence1; it has txt",
        ),
        ("embeddings", '{"text": null}', "has no text"),
        ("embeddings", '{"query": "a"}', "field 'passage' is missing; it has query"),
        (
            "embeddings",
            '{"text": "a", "query": "b"}',
            "has the fields text and query, which name the same thing",
        ),
        ("embeddings", '{"text": "a", "text": "b"}', "has the field 'text' twice"),
        ("embeddings", '{"text": "a"', "is not JSON: Expecting ',' delimiter at character 12"),
        ("embeddings", '{"text": "a", "x": NaN}', "is not JSON: NaN is no number"),
        ("embeddings", '["a"]', "is list, expected an object"),
        ("embeddings", "[" * 100_000, "is not JSON"),
        (
            "embeddings",
            '{"text": "a", "text_pair": "b", "score": "0.5"}',
            "field 'score' is str, expected a number",
        ),
        (
            "embeddings",
            '{"text": "a", "text_pair": "b", "score": true}',
            "field 'score' is bool, expected a number",
        ),
        (
            "embeddings",
            '{"text": "a", "text_pair": "b", "score": 1e999}',
            "field 'score' is not a finite number",
        ),
        (
            "embeddings",
            '{"text": "a", "text_pair": "b", "score": 1, "label": 1}',
            "has the fields score and label",
        ),
        ("reranking", '{"text": "a"}', "has one text; reranking takes two, such as query and passage"),
        ("token-classification", '{"query": "a", "passage": "b"}', "has two texts, query and passage"),
        ("token-classification", '{"text": "a", "labels": "X"}', "field 'labels' is str, expected a list"),
        (
            "token-classification",
            '{"text": "a", "labels": ["X"]}',
            r"field 'labels[0]' is str, expected [start, end",
        ),
        (
            "token-classification",
            '{"text": "ab", "labels": [[0, 3, "X"]]}',
            "field 'labels[0]' is no span of the text: need 0 <= start < end <= 2",
        ),
        ("sequence-classification", '{"text": "a", "label": true}', "field 'label' is bool, expected str"),
        ("sequence-classification", '{"text": "a", "labels": "x"}', "field 'labels' is str, expected a list"),
        (
            "question-answering",
            '{"question": "a", "context": "b", "answers": []}',
            "field 'answers' is empty; a question without an answer cannot be judged",
        ),
        (
            "question-answering",
            '{"question": "a", "context": "b", "answer": "c"}',
            "field 'answer[0]' does not stand in the context",
        ),
    ],
)
def test_a_bad_row_is_named_by_its_line_or_skipped_by_choice(
    write: Write, task: str, row: str, error: str
) -> None:
    good = (
        '{"question": "q", "context": "c d"}'
        if task in {"reranking", "question-answering"}
        else '{"text": "t"}'
    )
    if '"text_pair"' in row:
        good = '{"text": "t", "text_pair": "u", "score": 1}'
    path = write("data.jsonl", f"{good}\n{row}\n{good}\n")
    with pytest.raises(InputError) as refused:
        read(path, task)
    assert f"data.jsonl:2: {error}" in str(refused.value)
    assert str(refused.value).endswith("; correct the row, or leave out such rows with --skip-bad-rows")
    data = read(path, task, skip_bad=True)
    assert [example.line for example in data.examples] == [1, 3]
    assert len(data.skipped) == 1
    assert f"data.jsonl:2: {error}" in data.skipped[0]
    assert data.digest == read(write("b.jsonl", f"{good}\n{good}\n"), task).digest


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ("a,b,c", "has 3 cells, expected 2 as in the header"),
        ("a", "has 1 cells, expected 2 as in the header"),
        (",yes", "field 'text' is empty"),
        ('"a"b,yes', "is not CSV: ',' expected after '\"'"),
        ("a\0b,yes", "NUL"),
        ("a,", "has no label, and line 2 has one"),
    ],
)
def test_a_bad_row_of_cells_is_named_by_its_line_or_skipped_by_choice(
    write: Write, row: str, error: str
) -> None:
    path = write("a.csv", f"text,label\ngood,yes\n{row}\nbetter,no\n")
    with pytest.raises(InputError) as refused:
        read(path, "sequence-classification")
    assert "a.csv:3: " in str(refused.value)
    assert error in str(refused.value)
    data = read(path, "sequence-classification", skip_bad=True)
    assert texts(data) == [("good",), ("better",)]
    assert len(data.skipped) == 1


def test_a_quote_that_never_closes_is_named_by_the_line_it_opens_on(write: Write) -> None:
    with pytest.raises(InputError, match=r"a\.csv:3: is not CSV: unexpected end of data"):
        read(write("a.csv", 'text\na\n"b\nc\nd\n'), "embeddings")


def test_reading_cells_leaves_the_limit_of_others_as_it_was(write: Write) -> None:
    import csv  # noqa: PLC0415 - to ask for its state

    before = csv.field_size_limit()
    read(write("a.csv", "text\na\n"), "embeddings")
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("text,label,text\na,b,c\n", "a.csv:1: column 'text' appears twice"),
        (
            "some words\nmore words\n",
            "a.csv:1: the first line must name the columns, one of them text, query",
        ),
        ("text;label\na;b\n", "it has text;label"),
        ("text\n", "holds no rows; expected at least one"),
        ("", "holds no rows; expected at least one"),
    ],
)
def test_a_header_that_cannot_be_used_refuses_the_file(write: Write, content: str, error: str) -> None:
    path = write("a.csv", content)
    for skip_bad in (False, True):
        with pytest.raises(InputError) as refused:
            read(path, "sequence-classification", skip_bad=skip_bad)
        assert error in str(refused.value)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_a_file_in_another_encoding_is_refused_even_where_bad_rows_are_skipped(
    write: Write, name: str
) -> None:
    latin = write(name, b"text\nplain\ncaf\xe9\n")
    if name == "a.jsonl":
        latin = write(name, b'{"text": "x"}\n\n{"text": "caf\xe9"}\n')
    with pytest.raises(InputError, match=rf"{name}:3: byte 0xE9 at \d+ is not UTF-8; convert the file"):
        read(latin, "embeddings", skip_bad=True)
    with pytest.raises(InputError, match="is UTF-16, expected UTF-8: iconv"):
        read(write(name, "text".encode("utf-16")), "embeddings")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.ndjson", "A.CSV"])
def test_an_empty_set_is_refused(write: Write, name: str) -> None:
    for content in ("", "\n\n", "\ufeff"):
        with pytest.raises(InputError, match="holds no rows; expected at least one"):
            read(write(name, content), "embeddings")


def test_a_set_of_bad_rows_is_an_empty_set(write: Write) -> None:
    path = write("a.jsonl", '{"text": 1}\n{"text": 2}\n')
    with pytest.raises(
        InputError, match=r"no rows that can be used; 2 are bad, the first: .*a\.jsonl:1: field"
    ):
        read(path, "embeddings", skip_bad=True)


def test_what_is_no_file_of_data_is_refused_with_what_is(write: Write, tmp_path: Path) -> None:
    endings = r"\.jsonl, \.ndjson, \.txt, \.csv, \.parquet, \.arrow"
    with pytest.raises(
        InputError, match=rf"is a folder without tables .*reads such a folder or a file: {endings}"
    ):
        read(tmp_path, "embeddings")
    with pytest.raises(InputError, match=f"does not exist; expected a file of data: {endings}"):
        read(tmp_path / "none.jsonl", "embeddings")
    with pytest.raises(InputError, match=f"ending '.xlsx' is not one of: {endings}"):
        read(write("a.xlsx", "x"), "embeddings")
    with pytest.raises(InputError, match=f"ending '' is not one of: {endings}"):
        read(write("a", "x"), "embeddings")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(InputError, match="is no ordinary file"):
        read(tmp_path / "pipe.jsonl", "embeddings")
    with pytest.raises(InputError, match="task 'poetry' is not one of: embeddings"):
        read(write("a.txt", "x"), "poetry")


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read: File name too long"):
        read(tmp_path / ("x" * 300 + ".jsonl"), "embeddings")


def test_more_than_a_gibibyte_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(InputError, match=f"has {MAX_BYTES + 1} bytes, and data may have {MAX_BYTES}"):
        read(path, "embeddings")


def test_lines_of_text_cannot_hold_pairs(write: Write) -> None:
    with pytest.raises(InputError, match="reranking takes two texts a row, which lines of text cannot hold"):
        read(write("a.txt", "a\n"), "reranking")


def test_rows_are_alike_in_texts_and_labels(write: Write) -> None:
    mixed = write("a.jsonl", '{"text": "a"}\n{"text": "a", "text_pair": "b"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl:2: has two texts, and line 1 has one text"):
        read(mixed, "embeddings")
    partly = write("b.jsonl", '{"text": "a"}\n{"text": "b", "label": "x"}\n')
    with pytest.raises(InputError, match=r"b\.jsonl:2: has a label, and line 1 has none"):
        read(partly, "sequence-classification")


def test_the_digest_is_of_the_rows_and_of_nothing_else(write: Write) -> None:
    rows = ['{"text": "a", "label": "x"}', '{"text": "b", "label": "y"}']
    first = read(write("a.jsonl", "\n".join(rows)), "sequence-classification")
    same = read(write("b.csv", "label,text\nx,a\n\ny,b\n"), "sequence-classification")
    turned = read(write("c.jsonl", "\n".join(reversed(rows))), "sequence-classification")
    bare = read(write("d.txt", "a\nb\n"), "sequence-classification")
    assert first.digest == same.digest
    assert len({first.digest, turned.digest, bare.digest}) == 3
    assert len(first.digest) == 64


def test_the_digest_tells_a_pair_from_a_joined_text() -> None:
    pair = Example(texts=("a", "b"), line=1)
    joined = Example(texts=('a", "b',), line=1)
    assert digest_of([pair]) != digest_of([joined])


@given(content=st.binary(max_size=200), task=st.sampled_from(TEXT_TASKS), skip_bad=st.booleans())
@pytest.mark.parametrize("ending", [".jsonl", ".txt", ".csv"])
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, ending: str, content: bytes, task: str, skip_bad: bool
) -> None:
    path = tmp_path_factory.mktemp("any") / f"a{ending}"
    path.write_bytes(content)
    try:
        read_rows = len(read(path, task, skip_bad=skip_bad).examples)
    except InputError:
        return
    assert read_rows > 0
