from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alula
from alula.core.errors import InputError
from alula.data import MAX_BYTES, Dataset, read, tables

CLASSES, LINES = "image-classification", "text-recognition"
PNG = b"\x89PNG\r\n\x1a\n and more"
SENTIMENT = {"label": {"names": ["bad", "good"], "_type": "ClassLabel"}}
TAGS = {"names": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], "_type": "ClassLabel"}
WORDS = pa.list_(pa.string())
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})

Columns = Mapping[str, Any]


def table(columns: Columns, features: Mapping[str, Any] | None = None) -> pa.Table:
    """Columns with what `datasets` writes beside them."""
    made = pa.table(columns)
    if features is None:
        return made
    return made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def stream(path: Path, content: pa.Table) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, content.schema) as writer:
        writer.write_table(content, max_chunksize=2)
    return path


def random_access(path: Path, content: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, content.schema) as writer:
        writer.write_table(content, max_chunksize=2)
    return path


def parquet(path: Path, content: pa.Table) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(content, path, row_group_size=2)
    return path


def saved(folder: Path, content: pa.Table, parts: int = 1) -> Path:
    """A folder as `Dataset.save_to_disk` leaves it."""
    names = [f"data-{at:05}-of-{parts:05}.arrow" for at in range(parts)]
    size = -(-len(content) // parts)
    for at, name in enumerate(names):
        stream(folder / name, content.slice(at * size, size))
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))
    return folder


FORMS: dict[str, Callable[[Path, pa.Table], Path]] = {
    "one.parquet": parquet,
    "stream.arrow": stream,
    "file.arrow": random_access,
    "saved": saved,
    "shards": lambda path, content: saved(path, content, parts=3),
}


def labels(data: Dataset) -> list[object]:
    return [example.label for example in data.examples]


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_rows_that_json_lines_give(tmp_path: Path, name: str) -> None:
    numbers = [1, 0, 1, 1, 0]
    content = table({"id": range(5), "text": [f"text {n}" for n in range(5)], "label": numbers}, SENTIMENT)
    data = read(FORMS[name](tmp_path / name, content), "sequence-classification")
    assert [example.texts for example in data.examples] == [(f"text {n}",) for n in range(5)]
    assert labels(data) == ["good", "bad", "good", "good", "bad"]
    assert [example.line for example in data.examples] == [1, 2, 3, 4, 5]
    rows = [{"text": f"text {n}", "label": ["bad", "good"][number]} for n, number in enumerate(numbers)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert data.digest == read(tmp_path / "a.jsonl", "sequence-classification").digest


@pytest.mark.parametrize(
    ("task", "columns", "features", "texts", "label"),
    [
        ("sequence-classification", {"text": ["a"], "label": [1]}, None, ("a",), "1"),
        ("sequence-classification", {"text": ["a"], "label": [-1]}, SENTIMENT, ("a",), None),
        ("sequence-classification", {"text": ["a"], "label": [None]}, SENTIMENT, ("a",), None),
        ("sequence-classification", {"text": ["a"], "label": ["good"]}, SENTIMENT, ("a",), "good"),
        (
            "sequence-classification",
            {"text": ["a"], "labels": [[0, 1]]},
            {"labels": {"feature": SENTIMENT["label"], "_type": "Sequence"}},
            ("a",),
            ("bad", "good"),
        ),
        ("embeddings", {"sentence1": ["a"], "sentence2": ["b"], "score": [2.5]}, {}, ("a", "b"), 2.5),
        ("reranking", {"query": ["a"], "passage": ["b"], "label": [1]}, SENTIMENT, ("a", "b"), 1.0),
        ("reranking", {"query": ["a"], "passage": ["b"], "label": [-1]}, SENTIMENT, ("a", "b"), None),
        (
            "question-answering",
            {
                "question": ["q"],
                "context": ["a b"],
                "answers": [{"text": ["a", "b"], "answer_start": [0, 2]}],
            },
            {},
            ("q", "a b"),
            ("a", "b"),
        ),
        ("token-classification", {"tokens": [["a"]]}, {}, ("a",), None),
        (
            "token-classification",
            {"tokens": [["Anna", "B", "in", "Rome"]], "ner_tags": [[1, 2, 0, 3]]},
            {"ner_tags": {"feature": TAGS, "_type": "List"}},
            ("Anna B in Rome",),
            ((0, 6, "PER"), (10, 14, "LOC")),
        ),
        (
            "token-classification",
            {"tokens": [["x", "y"]], "ner_tags": [[0, 0]]},
            {"ner_tags": [TAGS]},
            ("x y",),
            (),
        ),
    ],
)
def test_columns_are_the_fields_of_json_lines(
    tmp_path: Path, task: str, columns: Columns, features: Any, texts: tuple[str, ...], label: object
) -> None:
    example = read(parquet(tmp_path / "a.parquet", table(columns, features)), task).examples[0]
    assert (example.texts, example.label) == (texts, label)
    assert type(example.label) is type(label)


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("B-A B-A", [(0, 1, "A"), (2, 3, "A")]),
        ("B-A I-A O I-A", [(0, 3, "A"), (6, 7, "A")]),
        ("I-A I-B I-B", [(0, 1, "A"), (2, 5, "B")]),
        ("A A O B", [(0, 3, "A"), (6, 7, "B")]),
        ("B-x-y I-x-y", [(0, 3, "x-y")]),
        ("O O", []),
    ],
)
def test_tags_are_spans_of_words_with_a_space_between(
    tmp_path: Path, tags: str, spans: list[tuple[int, int, str]]
) -> None:
    given = tags.split()
    (tmp_path / "a.jsonl").write_text(json.dumps({"tokens": ["w"] * len(given), "ner_tags": given}))
    example = read(tmp_path / "a.jsonl", "token-classification").examples[0]
    assert example.texts == (" ".join(["w"] * len(given)),)
    assert example.label == tuple(spans)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"tokens": "a b"}, "field 'tokens' is str, expected a list of str"),
        ({"tokens": []}, "field 'tokens' is empty"),
        ({"tokens": ["a", ""]}, "field 'tokens[1]' is empty"),
        ({"tokens": ["a"], "ner_tags": []}, "has 1 tokens and 0 ner_tags; expected a tag for each"),
        ({"tokens": ["a"], "ner_tags": [3]}, "field 'ner_tags[0]' is int, expected str"),
        (
            {"tokens": ["a"], "text": "a"},
            "has the fields tokens and text; expected words with tags or a text",
        ),
        ({"tokens": ["a"], "labels": []}, "has the fields tokens and labels; expected words with tags or"),
        ({}, "has no text: expected a field of text, query, question, sentence1, tokens; it has none"),
    ],
)
def test_words_and_tags_that_do_not_fit_are_a_bad_row(
    tmp_path: Path, row: dict[str, object], error: str
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    with pytest.raises(InputError) as refused:
        read(tmp_path / "a.jsonl", "token-classification")
    assert f"a.jsonl:1: {error}" in str(refused.value)


@pytest.mark.parametrize("name", FORMS)
def test_images_come_as_bytes_and_their_classes_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "beside.png").write_bytes(PNG + b"2")
    beside = str(tmp_path / "beside.png")
    images = pa.array([{"bytes": PNG, "path": "gone.png"}, {"bytes": None, "path": beside}], IMAGE)
    path = FORMS[name](tmp_path / name, table({"image": images, "label": [1, 0]}, SENTIMENT))
    data = read(path, CLASSES)
    assert [(e.image, e.label) for e in data.examples] == [(PNG, "good"), (Path(beside), "bad")]
    for label in ("bad", "good"):
        (tmp_path / "same" / label).mkdir(parents=True)
    (tmp_path / "same" / "good" / "a.png").write_bytes(PNG)
    (tmp_path / "same" / "bad" / "a.png").write_bytes(PNG + b"2")
    turned = read(
        FORMS[name](tmp_path / f"t-{name}", table({"image": images[::-1], "label": [0, 1]}, SENTIMENT)),
        CLASSES,
    )
    assert turned.digest == read(tmp_path / "same", CLASSES).digest != data.digest


def test_lines_to_read_come_with_their_text(tmp_path: Path) -> None:
    images = pa.array([PNG, PNG], pa.binary())
    path = parquet(
        tmp_path / "a.parquet", table({"image": images, "text": ["one", "two"], "file_name": ["x", "y"]})
    )
    data = read(path, LINES)
    assert [(e.image, e.label) for e in data.examples] == [(PNG, "one"), (PNG, "two")]


@pytest.mark.parametrize(
    ("task", "columns", "error"),
    [
        (
            "sequence-classification",
            {"text": ["a", "b", "c"], "label": [0, 2, 1]},
            "field 'label' is 2, and its classes",
        ),
        (
            "sequence-classification",
            {"text": ["a", "b", "c"], "label": [0, -1, 1]},
            "has no label, and row 1 has one",
        ),
        (
            "sequence-classification",
            {"text": ["a", None, "c"]},
            "has no text: expected a field of text, query",
        ),
        ("sequence-classification", {"text": ["a", " ", "c"]}, "field 'text' is empty"),
        (
            "embeddings",
            {"text": ["a"] * 3, "text_pair": ["b"] * 3, "score": [0.0, float("nan"), 1.0]},
            "field 'score' is not a finite number",
        ),
        (
            "question-answering",
            {
                "question": ["q"] * 3,
                "context": ["c"] * 3,
                "answers": [{"text": ["c"]}, {"text": []}, {"text": ["c"]}],
            },
            "field 'answers.text' is empty; a question without an answer cannot be judged",
        ),
        (CLASSES, {"image": pa.array([PNG, b"", PNG])}, "field 'image' is empty, expected an image"),
        (
            CLASSES,
            {"image": pa.array([PNG, b"abc", PNG])},
            "field 'image' begins with 61 62 63, which is no image",
        ),
        (
            CLASSES,
            {
                "image": pa.array(
                    [{"bytes": PNG, "path": None}, {"bytes": None, "path": None}, {"bytes": PNG}], IMAGE
                )
            },
            "field 'image' has neither bytes nor a path",
        ),
    ],
)
@pytest.mark.parametrize("name", ["one.parquet", "shards"])
def test_a_bad_row_is_named_by_its_number_or_skipped_by_choice(
    tmp_path: Path, name: str, task: str, columns: Columns, error: str
) -> None:
    path = FORMS[name](tmp_path / name, table(columns, SENTIMENT))
    with pytest.raises(InputError) as refused:
        read(path, task)
    assert f"{name}:2: {error}" in str(refused.value)
    data = read(path, task, skip_bad=True)
    assert [example.line for example in data.examples] == [1, 3]
    assert data.skipped[0].startswith(f"{path}:2: {error}")


def test_columns_without_a_text_refuse_the_file(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", table({"sentence": ["a"], "label": [1]}))
    with pytest.raises(
        InputError,
        match=r"a\.parquet: expected named columns, one of them text, query, .* it has sentence, label",
    ):
        read(path, "embeddings", skip_bad=True)
    twice = pa.table([["a"], ["b"]], names=["text", "text"])
    with pytest.raises(InputError, match=r"b\.arrow: column 'text' appears twice"):
        read(stream(tmp_path / "b.arrow", twice), "embeddings")


def test_a_table_without_rows_is_an_empty_set(tmp_path: Path) -> None:
    content = table({"text": pa.array([], pa.string())})
    for name in ("one.parquet", "stream.arrow", "file.arrow", "saved"):
        with pytest.raises(InputError, match="holds no rows; expected at least one"):
            read(FORMS[name](tmp_path / name, content), "embeddings")


def test_several_splits_are_named(tmp_path: Path) -> None:
    content = table({"text": ["a"]})
    for split in ("train", "test"):
        saved(tmp_path / "dict" / split, content)
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(InputError) as refused:
        read(tmp_path / "dict", "embeddings")
    assert str(refused.value).endswith(
        "dict is not itself a set of rows; name one of those in it: "
        f"{tmp_path}/dict/train, {tmp_path}/dict/test"
    )
    assert len(read(tmp_path / "dict" / "test", "embeddings").examples) == 1


@pytest.mark.parametrize("suffix", ["", "-a09b74b3ef9c3b56"])
def test_a_split_of_the_hub_is_named_without_its_parts(tmp_path: Path, suffix: str) -> None:
    data = tmp_path / "hub" / "data"
    for at in range(2):
        parquet(data / f"train-{at:05}-of-00002{suffix}.parquet", table({"text": [f"train {at}"]}))
    test = parquet(data / f"test-00000-of-00001{suffix}.parquet", table({"text": ["test"]}))
    for folder in (data, data.parent):
        with pytest.raises(InputError) as refused:
            read(folder, "embeddings")
        assert str(refused.value).endswith(f"name one of those in it: {test}, {data}/train")
    assert [e.texts for e in read(data / "train", "embeddings").examples] == [("train 0",), ("train 1",)]
    assert read(data / "test", "embeddings").digest == read(test, "embeddings").digest
    with pytest.raises(InputError, match="data/dev does not exist"):
        read(data / "dev", "embeddings")
    (data / f"train-00001-of-00002{suffix}.parquet").unlink()
    with pytest.raises(
        InputError, match="data/train is not whole: of 2 parts there are 1: train-00000-of-00002"
    ):
        read(data / "train", "embeddings")
    test.unlink()
    with pytest.raises(InputError, match="data is not whole: of 2 parts there are 1"):
        read(data, "embeddings")


def test_a_folder_of_parquet_files_is_one_set_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("0001", "0000", ".hidden"):
        parquet(tmp_path / "set" / f"{name}.parquet", table({"text": [name]}))
    assert [e.texts for e in read(tmp_path / "set", "embeddings").examples] == [("0000",), ("0001",)]
    (tmp_path / "set" / "0000.parquet").rename(tmp_path / "set" / "train.parquet")
    with pytest.raises(
        InputError, match=r"name one of those in it: .*/set/0001\.parquet, .*/set/train\.parquet"
    ):
        read(tmp_path / "set", "embeddings")


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("[]", "state.json is not what datasets writes: 'list' object has no attribute 'get'"),
        ("{", "state.json is not what datasets writes: Expecting property name"),
        ("{}", "state.json names no data files in its folder"),
        ('{"_data_files": 3}', "state.json names no data files in its folder"),
        ('{"_data_files": ["data.arrow"]}', "state.json names no data files in its folder"),
        ('{"_data_files": [{"filename": "../a.arrow"}]}', "state.json names no data files in its folder"),
        ('{"_data_files": [{"filename": "b.arrow"}]}', "b.arrow does not exist; "),
        (
            '{"_data_files": [], "_indices_data_files": [{}]}',
            "was saved with an order of its own; save its flatten",
        ),
    ],
)
def test_a_saved_folder_that_is_not_whole_is_refused(tmp_path: Path, state: str, error: str) -> None:
    folder = saved(tmp_path / "set", table({"text": ["a"]}))
    (folder / "state.json").write_text(state)
    with pytest.raises(InputError) as refused:
        read(folder, "embeddings", skip_bad=True)
    assert error in str(refused.value)


def test_a_saved_folder_without_its_state_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", table({"text": ["a"]}))
    (folder / "state.json").unlink()
    with pytest.raises(
        InputError, match=r"set holds \.arrow files without state\.json; name one of the files"
    ):
        read(folder, "embeddings")
    (folder / "dataset_dict.json").write_text("{}")
    with pytest.raises(InputError, match=r"dataset_dict\.json names no splits"):
        read(folder, "embeddings")


def test_classes_may_be_named_beside_the_columns(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", table({"text": ["a"], "label": [1]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": SENTIMENT}))
    assert labels(read(folder, "sequence-classification")) == ["good"]
    (folder / "dataset_info.json").write_text('{"features": {"label": {"_type": "ClassLabel"}}}')
    with pytest.raises(
        InputError, match=r"\.arrow: its features are not what datasets writes: KeyError\('names'\)"
    ):
        read(folder, "sequence-classification")


def damaged_offsets() -> pa.Table:
    """A column whose first text ends far outside its bytes."""
    offsets = pa.py_buffer(np.array([0, 1 << 30, 2], np.int32).tobytes())
    return pa.table(
        {"text": pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab" * 40)])}
    )


def not_utf8() -> pa.Table:
    return pa.table({"text": pa.array([b"a", b"caf\xe9"]).view(pa.string())})


@pytest.mark.parametrize("made", [damaged_offsets, not_utf8])
@pytest.mark.parametrize("form", [stream, random_access])
def test_a_damaged_column_is_refused_before_it_is_used(
    tmp_path: Path, made: Callable[[], pa.Table], form: Callable[[Path, pa.Table], Path]
) -> None:
    path = form(tmp_path / "a.arrow", made())
    with pytest.raises(InputError, match=r"a\.arrow cannot be read as \.arrow: In column 0: Invalid"):
        read(path, "embeddings", skip_bad=True)


@pytest.mark.parametrize("name", ["one.parquet", "stream.arrow", "file.arrow"])
def test_a_file_cut_short_is_refused(tmp_path: Path, name: str) -> None:
    path = FORMS[name](tmp_path / name, table({"text": ["a", "b", "c"]}))
    whole = path.read_bytes()
    for size in (0, 3, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=f"{name} cannot be read as {path.suffix}: "):
            read(path, "embeddings", skip_bad=True)


def test_a_size_that_no_machine_has_is_refused(tmp_path: Path) -> None:
    path = stream(tmp_path / "a.arrow", table({"text": ["a", "b"]}))
    whole = path.read_bytes()
    messages = pa.ipc.MessageReader.open_stream(whole)
    messages.read_next_message()  # the schema
    claim = struct.pack("<q", messages.read_next_message().body.size)
    assert whole.count(claim) == 1
    path.write_bytes(whole.replace(claim, struct.pack("<q", 1 << 50)))
    with pytest.raises(InputError, match=r"a\.arrow cannot be read as \.arrow: "):
        read(path, "embeddings")


def test_more_than_a_gibibyte_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.parquet"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(InputError, match=f"has {MAX_BYTES + 1} bytes, and data may have {MAX_BYTES}"):
        read(path, "embeddings")
    monkeypatch.setattr(tables, "MAX_BYTES", 1 << 20)
    packed = tmp_path / "a.parquet"
    pq.write_table(table({"text": ["a" * 4096] * 400}), packed)
    assert packed.stat().st_size < 1 << 15
    with pytest.raises(InputError, match="unpacks to more than 1048576 bytes; draw some rows from it"):
        read(packed, "embeddings")


def test_without_pyarrow_the_extra_is_named_and_all_else_works(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", table({"text": ["a"]}))
    (tmp_path / "a.txt").write_text("a")
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pathlib import Path; from alula.data import read\n"
        "print(len(read(Path('a.txt'), 'embeddings').examples))\n"
        "try: read(Path('a.parquet'), 'embeddings')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(alula.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    said = "MissingExtraError reading Arrow and Parquet files needs: pip install 'alula[data]'"
    assert done.stdout.splitlines() == ["1", said], done.stderr


def test_pyarrow_is_not_loaded_for_what_needs_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    code = (
        "import sys; from pathlib import Path; from alula.data import read\n"
        "read(Path('a.txt'), 'embeddings'); print('pyarrow' in sys.modules)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(alula.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "False\n", done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Small sound files, by the name of their form."""
    folder = tmp_path_factory.mktemp("whole")
    columns = {"text": ["one", "two", "three"], "label": [0, 1, 1]}
    return {
        name: FORMS[name](folder / name, table(columns, SENTIMENT)).read_bytes()
        for name in ("one.parquet", "stream.arrow", "file.arrow")
    }


@settings(max_examples=100)
@given(
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4
    ),
    skip_bad=st.booleans(),
)
@pytest.mark.parametrize("name", ["one.parquet", "stream.arrow", "file.arrow"])
def test_any_damage_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    whole: dict[str, bytes],
    name: str,
    changes: list[tuple[float, int]],
    skip_bad: bool,
) -> None:
    content = bytearray(whole[name])
    for place, value in changes:
        content[int(place * len(content))] = value
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(content)
    try:
        found = len(read(path, "sequence-classification", skip_bad=skip_bad).examples)
    except InputError:
        return
    assert found > 0
