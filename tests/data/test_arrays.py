"""Calls to models that take arrays, from numpy's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from alula.core.errors import InputError
from alula.core.tensor import TensorSpec
from alula.data import Dataset, read, read_feeds, write_arrays

X = TensorSpec(name="x", dtype="float32", shape=("batch", 3))
IDS = TensorSpec(name="ids", dtype="int64", shape=("batch",))
BOTH = (X, IDS)

Array = NDArray[np.generic]


def call(folder: Path, arrays: Mapping[str, Array], name: str = "a.npz") -> Path:
    folder.mkdir(exist_ok=True)
    np.savez(folder / name, **arrays)  # type: ignore[arg-type] # numpy names its own options among them
    return folder / name


def good(rows: int = 2) -> dict[str, Array]:
    return {"x": np.ones((rows, 3), np.float32), "ids": np.arange(rows)}


def test_a_call_is_the_arrays_of_one_file_by_input(tmp_path: Path) -> None:
    feeds = read_feeds(call(tmp_path, good()), BOTH)
    assert list(feeds) == ["x", "ids"]
    assert (feeds["x"].dtype, feeds["x"].shape) == (np.dtype("float32"), (2, 3))


def test_one_array_alone_is_enough_for_one_input(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((4, 3)))
    assert read_feeds(tmp_path / "a.npy", (X,))["x"].dtype == np.dtype("float32")
    with pytest.raises(InputError, match=r"a\.npy: is one array, and the model takes 2; expected \.npz"):
        read_feeds(tmp_path / "a.npy", BOTH)


def test_numbers_of_another_width_are_taken_where_nothing_is_lost(tmp_path: Path) -> None:
    """huggingface/optimum#223: ids of 32 bits were refused where 64 are declared, or the other way round."""
    arrays: dict[str, Array] = {"x": np.ones((2, 3), np.float64), "ids": np.arange(2, dtype=np.int32)}
    feeds = read_feeds(call(tmp_path, arrays), BOTH)
    assert [array.dtype.name for array in feeds.values()] == ["float32", "int64"]
    small = TensorSpec(name="ids", dtype="int8", shape=("batch",))
    with pytest.raises(InputError, match="ids: int64 numbers that int8 does not hold"):
        read_feeds(call(tmp_path, {"x": np.ones((2, 3)), "ids": np.array([1, 300])}), (X, small))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (
            {"x": np.ones((2, 3))},
            "has no array 'ids'; it has x, expected x=float32[batch,3] ids=int64[batch]",
        ),
        ({**good(), "y": np.ones(1)}, "has an array 'y', and the model no such input; expected x="),
        ({**good(), "x": np.ones((2, 3), np.int64)}, "x: dtype int64, expected float32"),
        ({**good(), "ids": np.ones(2)}, "ids: dtype float64, expected int64"),
        ({**good(), "x": np.ones((2, 4))}, "x: axis 1 is 4, expected 3; expected x=float32[batch,3]"),
        ({**good(), "x": np.ones(3)}, "x: rank 1, expected 2: ('batch', 3)"),
        ({**good(), "ids": np.arange(3)}, "ids: axis 'batch' is 3, expected 2"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_by_its_file(
    arrays: dict[str, Array], said: str, tmp_path: Path
) -> None:
    file = call(tmp_path, arrays)
    with pytest.raises(InputError) as refused:
        read_feeds(file, BOTH)
    assert str(refused.value).startswith(f"{file}: {said}")


def test_what_are_no_arrays_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK not a zip at all")
    (tmp_path / "g.npz").write_text("hi")
    (tmp_path / "b.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "c.txt").write_text("1 2 3")
    np.save(tmp_path / "d.npy", np.array([{}], dtype=object), allow_pickle=True)
    whole = call(tmp_path, good(), "e.npz").read_bytes()
    (tmp_path / "e.npz").write_bytes(whole[: len(whole) // 2])
    for name in ("a.npz", "b.npy", "d.npy", "e.npz", "g.npz"):
        with pytest.raises(InputError, match=rf"{name}: cannot be read as arrays: ") as refused:
            read_feeds(tmp_path / name, (X,))
        assert "pickle" not in str(refused.value)
    with pytest.raises(InputError, match=r"c\.txt: is no file of arrays; expected one of: \.npz, \.npy"):
        read_feeds(tmp_path / "c.txt", (X,))
    with pytest.raises(InputError, match=r"f\.npz: cannot be read: No such file"):
        read_feeds(tmp_path / "f.npz", (X,))


def test_arrays_are_written_under_any_name(tmp_path: Path) -> None:
    arrays: dict[str, Array] = {
        "file": np.arange(3),
        "a/b:0": np.array(2.5, np.float32),
        "x": np.ones((1, 2), np.bool_),
    }
    write_arrays(tmp_path / "out.npz", arrays)
    with np.load(tmp_path / "out.npz") as found:
        assert sorted(found.files) == sorted(arrays)
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            assert np.array_equal(found[name], array)


def test_a_folder_holds_a_call_a_file(tmp_path: Path) -> None:
    for name in ("b.npz", "a.npz", ".hidden"):
        call(tmp_path / "calls", good(), name)
    data = read(tmp_path / "calls", "tensors", inputs=BOTH)
    assert [example.texts for example in data.examples] == [("a.npz",), ("b.npz",)]
    assert all(example.arrays is not None and example.label is None for example in data.examples)
    assert read(tmp_path / "calls" / "a.npz", "tensors", inputs=BOTH).examples[0].texts == ("a.npz",)


def test_the_digest_is_of_the_arrays(tmp_path: Path) -> None:
    def digest() -> str:
        data: Dataset = read(tmp_path / "calls", "tensors", inputs=BOTH)
        return data.digest

    call(tmp_path / "calls", good())
    first = digest()
    assert digest() == first
    call(tmp_path / "calls", {**good(), "ids": np.array([5, 6])})
    assert digest() != first


def test_a_bad_call_refuses_the_folder_or_is_left_out(tmp_path: Path) -> None:
    call(tmp_path / "calls", good(), "a.npz")
    call(tmp_path / "calls", {"x": np.ones((1, 3))}, "b.npz")
    (tmp_path / "calls" / "notes.txt").write_text("mine")
    with pytest.raises(
        InputError, match=r"b\.npz: has no array 'ids'.*; correct the row, or leave out such rows"
    ):
        read(tmp_path / "calls", "tensors", inputs=BOTH)
    data = read(tmp_path / "calls", "tensors", inputs=BOTH, skip_bad=True)
    assert len(data.examples) == 1
    assert [line.partition(": ")[2][:20] for line in data.skipped] == [
        "has no array 'ids'; ",
        "is no file of arrays",
    ]


def test_an_empty_or_absent_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    with pytest.raises(InputError, match="calls holds no rows; expected at least one"):
        read(tmp_path / "calls", "tensors", inputs=BOTH)
    with pytest.raises(
        InputError, match=r"none does not exist; expected a folder of \.npz or \.npy, one call a file"
    ):
        read(tmp_path / "none", "tensors", inputs=BOTH)
