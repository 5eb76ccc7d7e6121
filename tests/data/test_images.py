from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.core.errors import InputError
from alula.data import Dataset, folders, read, reading
from alula.data.images import MAX_IMAGE_BYTES

CLASSES, LINES = "image-classification", "text-recognition"
BOTH = pytest.mark.parametrize("task", [CLASSES, LINES])


def png(shade: int = 0, side: int = 2) -> bytes:
    """A grey square that any decoder opens."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    rows = (b"\0" + bytes([shade]) * side) * side
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


Fill = Callable[..., Path]


@pytest.fixture
def fill(tmp_path: Path) -> Fill:
    """A folder with files in it: names with / make folders, numbers make images, others are what they are."""

    def made(**files: object) -> Path:
        folder = tmp_path / "set"
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(content) if isinstance(content, int) else str(content).encode())
        return folder

    return made


def rows(data: Dataset) -> list[tuple[str, object, int]]:
    """File, label and number of each."""
    folder = data.path if data.path.is_dir() else data.path.parent
    return [
        (str(e.image.relative_to(folder)) if isinstance(e.image, Path) else "bytes", e.label, e.line)
        for e in data.examples
    ]


def lines(*fields: Mapping[str, object]) -> str:
    return "".join(json.dumps(field) + "\n" for field in fields)


def test_a_folder_of_folders_has_classes(fill: Fill) -> None:
    folder = fill(**{"dog/b.png": 2, "cat/z.JPG": 3, "cat/a.png": 1, "dog/.hidden": "", ".git/x.png": 4})
    data = read(folder, CLASSES)
    assert rows(data) == [("cat/a.png", "cat", 1), ("cat/z.JPG", "cat", 2), ("dog/b.png", "dog", 3)]
    assert all(example.texts == () for example in data.examples)
    assert (data.labelled, data.path) == (True, folder)


@BOTH
def test_a_flat_folder_has_no_labels(fill: Fill, task: str) -> None:
    data = read(fill(**{"b.png": 2, "a.png": 1}), task)
    assert rows(data) == [("a.png", None, 1), ("b.png", None, 2)]
    assert not data.labelled


@pytest.mark.parametrize("name", ["metadata.csv", "labels.csv", "metadata.jsonl"])
def test_a_list_beside_the_images_labels_them_in_its_own_order(fill: Fill, name: str) -> None:
    pairs = [("b.png", "two words"), ("deep/er/a.png", "1")]
    cells = "file_name,text\n" + "".join(f"{file},{text}\n" for file, text in pairs)
    objects = lines(*({"file_name": file, "text": text} for file, text in pairs))
    files = {"b.png": 2, "deep/er/a.png": 1, name: objects if name.endswith("jsonl") else cells}
    folder = fill(**files)
    first = 1 if name.endswith("jsonl") else 2
    data = read(folder, LINES)
    assert rows(data) == [("b.png", "two words", first), ("deep/er/a.png", "1", first + 1)]
    assert data.digest == read(folder / name, LINES).digest
    classes = {name: (folder / name).read_text().replace("text", "label", 1)}
    if name.endswith("csv"):
        assert [e.label for e in read(fill(**classes), CLASSES).examples] == ["two words", "1"]


@BOTH
@pytest.mark.parametrize("field", ["image", "file_name"])
@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_files_name_images_beside_them_or_anywhere(fill: Fill, task: str, field: str, ending: str) -> None:
    folder = fill(**{"in/a.png": 1, "in/b.png": 2})
    names = ["in/a.png", str(folder / "in/b.png")]
    if ending == ".csv":
        fill(**{"rows.csv": f"{field},label\n{names[0]},x\n{names[1]},y\n"})
    else:
        fill(**{"rows.jsonl": lines({field: names[0], "label": "x"}, {field: names[1], "label": "y"})})
    data = read(folder / f"rows{ending}", task)
    assert [(file, label) for file, label, _ in rows(data)] == [("in/a.png", "x"), ("in/b.png", "y")]


@pytest.mark.parametrize(
    ("task", "fields", "label"),
    [
        (CLASSES, {"label": "cat"}, "cat"),
        (CLASSES, {"label": 3}, "3"),
        (CLASSES, {"text": "a caption"}, None),
        (LINES, {"text": "Größe 3"}, "Größe 3"),
        (LINES, {"label": "7"}, "7"),
        (LINES, {}, None),
    ],
)
def test_a_label_is_a_class_or_what_is_written(
    fill: Fill, task: str, fields: dict[str, object], label: object
) -> None:
    folder = fill(**{"a.png": 1, "rows.jsonl": lines({"image": "a.png", **fields})})
    assert read(folder / "rows.jsonl", task).examples[0].label == label


@pytest.mark.parametrize(
    ("task", "fields", "error"),
    [
        (CLASSES, {"text": "a"}, "has no image: expected a field of image, file_name; it has text"),
        (CLASSES, {"image": 3}, "field 'image' is int, expected the path of an image"),
        (CLASSES, {"image": {"path": None}}, "field 'image' has neither bytes nor a path"),
        (CLASSES, {"image": ""}, "field 'image' is empty"),
        (CLASSES, {"image": "a\0.png"}, "field 'image' has a NUL at character 1"),
        (CLASSES, {"image": "a.png", "file_name": "a.png"}, "has the fields image and file_name, which name"),
        (CLASSES, {"image": "a.png", "label": 1.5}, "field 'label' is float, expected str"),
        (CLASSES, {"image": "a.png", "label": ["x"]}, "field 'label' is list, expected str"),
        (LINES, {"image": "a.png", "label": 7}, "field 'label' is int, expected str"),
        (LINES, {"image": "a.png", "text": " "}, "field 'text' is empty"),
        (LINES, {"image": "a.png", "text": "x", "label": "x"}, "has the fields text and label; expected one"),
        (CLASSES, {"image": "none.png"}, "none.png does not exist"),
        (CLASSES, {"image": "empty.png"}, "empty.png is empty, expected an image"),
        (
            CLASSES,
            {"image": "note.png"},
            "note.png begins with 61 20 77 6f 72 64, which is no image of PNG, JPEG",
        ),
        (CLASSES, {"image": "in"}, "in is no ordinary file, expected an image"),
        (CLASSES, {"image": "pipe.png"}, "pipe.png is no ordinary file, expected an image"),
        (
            CLASSES,
            {"image": "large.png"},
            f"large.png has {MAX_IMAGE_BYTES + 1} bytes, and an image may have",
        ),
        (CLASSES, {"image": "loop.png"}, "loop.png cannot be read: Too many levels of symbolic links"),
        (CLASSES, {"image": "x" * 300}, "cannot be read: File name too long"),
        (CLASSES, {"image": "a.png/b.png"}, "cannot be read: Not a directory"),
    ],
)
def test_a_bad_row_is_named_by_its_line_or_skipped_by_choice(
    fill: Fill, task: str, fields: dict[str, object], error: str
) -> None:
    folder = fill(**{"a.png": 1, "empty.png": "", "note.png": "a word", "in/a.png": 1})
    os.mkfifo(folder / "pipe.png")
    (folder / "loop.png").symlink_to("loop.png")
    with (folder / "large.png").open("wb") as file:
        file.write(png())
        file.truncate(MAX_IMAGE_BYTES + 1)
    good: dict[str, object] = {"image": "a.png"}
    if "label" in fields or "text" in fields:
        good["label"] = "x"
    fill(**{"rows.jsonl": lines(good, fields, good), "good.jsonl": lines(good, good)})
    with pytest.raises(InputError) as refused:
        read(folder / "rows.jsonl", task)
    assert "rows.jsonl:2: " in str(refused.value)
    assert error in str(refused.value)
    data = read(folder / "rows.jsonl", task, skip_bad=True)
    assert [example.line for example in data.examples] == [1, 3]
    assert error in data.skipped[0]
    assert data.digest == read(folder / "good.jsonl", task).digest


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("b.png", "", "set/b.png: is empty, expected an image"),
        ("b.png", "a word", "set/b.png: begins with 61 20 77 6f 72 64, which is no image of PNG, JPEG"),
        ("notes.txt", "a", "set/notes.txt: is no image file; expected one of: .png, .jpg"),
        ("cat/c.png", 3, "set/cat/c.png: has a label, and a.png has none"),
        ("cat/notes.txt", "a", "set/cat/notes.txt: is no image file"),
        ("cat/more/c.png", 3, "set/cat/more: is a folder within one; expected FOLDER/CLASS/IMAGE"),
    ],
)
def test_what_is_no_image_in_a_folder_is_named_by_its_path(
    fill: Fill, name: str, content: object, error: str
) -> None:
    folder = fill(**{"a.png": 1, "z.png": 2, name: content})
    with pytest.raises(InputError) as refused:
        read(folder, CLASSES)
    assert error in str(refused.value)
    assert str(refused.value).endswith("; correct the row, or leave out such rows with --skip-bad-rows")
    data = read(folder, CLASSES, skip_bad=True)
    assert [file for file, _, _ in rows(data)] == ["a.png", "z.png"]
    assert error in data.skipped[0]
    assert len(data.skipped) == 1


def test_a_folder_without_images_is_a_class_without_any(fill: Fill) -> None:
    folder = fill(**{"cat/a.png": 1})
    (folder / "dog").mkdir()
    with pytest.raises(InputError, match="set/dog: is a folder without images"):
        read(folder, CLASSES)


def test_a_file_that_its_list_leaves_out_is_a_bad_row(fill: Fill) -> None:
    files = {
        "a.png": 1,
        "in/b.png": 2,
        "c.png": 3,
        "metadata.csv": "file_name,label\n./a.png,x\nin/../in/b.png,y\n",
    }
    folder = fill(**files)
    with pytest.raises(InputError, match=r"set/c\.png: is not in metadata\.csv"):
        read(folder, CLASSES)
    assert len(read(folder, CLASSES, skip_bad=True).examples) == 2
    (folder / "c.png").unlink()
    assert rows(read(folder, CLASSES))[0] == ("a.png", "x", 2)


def test_a_list_is_checked_as_files_are(fill: Fill) -> None:
    folder = fill(**{"a.png": 1, "metadata.csv": "file;label\na.png;x\n"})
    with pytest.raises(
        InputError, match=r"must name the columns, one of them image, file_name; it has file;label"
    ):
        read(folder, CLASSES)
    fill(**{"labels.csv": "file_name\na.png\n"})
    with pytest.raises(
        InputError, match=r"set has metadata\.csv and labels\.csv; expected one list of labels"
    ):
        read(folder, CLASSES)


@BOTH
@pytest.mark.parametrize("skip_bad", [False, True])
def test_an_empty_folder_is_refused(fill: Fill, task: str, skip_bad: bool) -> None:
    """Adlik/Adlik#534: calibration with no images went on as if there were some."""
    with pytest.raises(
        InputError, match="set holds no images; expected FOLDER/CLASS/IMAGE, or images and a list"
    ):
        read(fill(), task, skip_bad=skip_bad)
    with pytest.raises(InputError, match="set holds no images"):
        read(fill(**{".hidden.png": 1}), task, skip_bad=skip_bad)


def test_a_folder_of_other_things_is_an_empty_set(fill: Fill) -> None:
    with pytest.raises(
        InputError, match=r"no rows that can be used; 1 are bad, the first: .*a\.txt: is no image"
    ):
        read(fill(**{"a.txt": "x"}), CLASSES, skip_bad=True)


def test_the_name_of_a_folder_is_no_text_to_read(fill: Fill) -> None:
    with pytest.raises(InputError) as refused:
        read(fill(**{"cat/a.png": 1}), LINES, skip_bad=True)
    assert "set has the folder cat, and a folder's name is no text to read" in str(refused.value)
    assert "takes its texts from a list beside the images: metadata.csv, metadata.jsonl" in str(refused.value)


def test_texts_and_images_are_not_taken_for_each_other(fill: Fill) -> None:
    folder = fill(**{"a.png": 1, "rows.txt": "a.png\n", "rows.jsonl": '{"text": "a"}\n'})
    with pytest.raises(
        InputError, match=r"is a folder without tables .*; embeddings reads such a folder or a file"
    ):
        read(folder, "embeddings")
    with pytest.raises(
        InputError, match="image-classification takes images, which lines of text cannot hold"
    ):
        read(folder / "rows.txt", CLASSES)
    with pytest.raises(InputError, match=r"rows.jsonl:1: has no image"):
        read(folder / "rows.jsonl", CLASSES)
    with pytest.raises(InputError, match=r"ending '.png' is not one of: .jsonl"):
        read(folder / "a.png", CLASSES)


def test_links_are_followed_and_never_in_circles(fill: Fill) -> None:
    folder = fill(**{"cat/a.png": 1})
    (folder / "cat" / "b.png").symlink_to("a.png")
    assert [label for _, label, _ in rows(read(folder, CLASSES))] == ["cat", "cat"]
    (folder / "cat" / "all").symlink_to(folder, target_is_directory=True)
    (folder / "cat" / "self.png").symlink_to("self.png")
    (folder / "cat" / "gone.png").symlink_to("none.png")
    (folder / "dog").symlink_to("dog")
    data = read(folder, CLASSES, skip_bad=True)
    assert [file for file, _, _ in rows(data)] == ["cat/a.png", "cat/b.png"]
    reasons = [reason.partition("/set/")[2] for reason in data.skipped]
    assert reasons == [
        "cat/all: is a folder within one; expected FOLDER/CLASS/IMAGE",
        "cat/gone.png: does not exist",
        "cat/self.png: cannot be read: Too many levels of symbolic links",
        f"dog: is no image file; expected one of: {', '.join(folders.ENDINGS)}",
    ]


def test_names_that_are_not_utf8_can_be_printed(fill: Fill) -> None:
    folder = fill(**{"cat/a.png": 1})
    odd = Path(os.fsdecode(os.fsencode(folder) + b"/cat/\xff.png"))
    odd.write_bytes(png(2))
    data = read(folder, CLASSES)
    assert data.examples[1].image == odd
    odd.write_bytes(b"")
    with pytest.raises(InputError, match=r"cat/\\xff\.png: is empty") as refused:
        read(folder, CLASSES)
    str(refused.value).encode()
    other = Path(os.fsdecode(os.fsencode(folder) + b"/\xfe"))
    odd.unlink()
    other.mkdir()
    (other / "b.png").write_bytes(png())
    with pytest.raises(InputError, match=r"\\xfe/b\.png: lies in a folder whose name is not UTF-8"):
        read(folder, CLASSES)


@pytest.mark.parametrize(
    "begin",
    [
        b"\xff\xd8\xff\xe0\0\x10JFIF",
        b"GIF89a\1\0",
        b"BM\x3a\0\0\0",
        b"II*\0\x08\0\0\0",
        b"MM\0*\0\0\0\x08",
        b"RIFF\x1a\0\0\0WEBPVP8 ",
    ],
)
def test_formats_are_known_by_how_they_begin_whatever_the_ending(fill: Fill, begin: bytes) -> None:
    folder = fill(**{"b.png": 1})
    (folder / "a.png").write_bytes(begin)
    assert len(read(folder, CLASSES).examples) == 2


def test_riff_alone_is_no_image(fill: Fill) -> None:
    folder = fill(**{"a.webp": "RIFF1234WAVEfmt "})
    with pytest.raises(InputError, match=r"a\.webp: begins with 52 49 46 46 31 32 33 34, which is no image"):
        read(folder, CLASSES)


def test_too_many_images_are_refused(fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MAX_IMAGES", 2)
    monkeypatch.setattr(reading, "MAX_IMAGES", 2)
    folder = fill(**{"a.png": 1, "b.png": 2, "rows.jsonl": lines(*[{"image": "a.png"}] * 3)})
    with pytest.raises(InputError, match="data may have 2 images, and there are more"):
        read(folder / "rows.jsonl", CLASSES)
    (folder / "rows.jsonl").unlink()
    assert len(read(folder, CLASSES).examples) == 2
    for more in ("c.png", "cat/d.png"):
        path = fill(**{more: 3}) / more
        with pytest.raises(InputError, match="set holds more than 2 images; draw some from it"):
            read(folder, CLASSES)
        path.unlink()


def test_the_digest_is_of_bytes_and_labels_and_not_of_paths(fill: Fill, tmp_path: Path) -> None:
    folder = fill(**{"cat/a.png": 1, "dog/b.png": 2})
    first = read(folder, CLASSES).digest
    (folder / "cat" / "a.png").rename(folder / "cat" / "renamed.png")
    assert read(folder, CLASSES).digest == first
    moved = folder.rename(tmp_path / "moved")
    assert read(moved, CLASSES).digest == first
    (moved / "dog" / "b.png").write_bytes(png(3))
    assert read(moved, CLASSES).digest != first
    (moved / "dog" / "b.png").write_bytes(png(2))
    (moved / "dog").rename(moved / "fox")
    assert read(moved, CLASSES).digest != first


@given(
    content=st.one_of(st.binary(max_size=40), st.just(png())),
    name=st.sampled_from(["a.png", "cat/a.png", "metadata.csv", "metadata.jsonl", "notes", "cat/x/a.png"]),
    table=st.binary(max_size=80),
    task=st.sampled_from([CLASSES, LINES]),
    skip_bad=st.booleans(),
)
def test_any_folder_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    content: bytes,
    name: str,
    table: bytes,
    task: str,
    skip_bad: bool,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "b.png").write_bytes(content)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(table if "metadata" in name else content)
    try:
        found = len(read(folder, task, skip_bad=skip_bad).examples)
    except InputError:
        return
    assert found > 0
