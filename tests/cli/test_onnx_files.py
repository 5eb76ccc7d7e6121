"""Any ONNX file on the command line, as a user does it: from another folder, with its weights beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_onnx import model_of, node, numbers, picture_net, saved, value


def alula(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "alula", *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
        env={**os.environ, "ALULA_CACHE": str(folder / "cache")},
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Weights in a file of their own, in a subfolder."""
    path = tmp_path / "models" / "deep" / "pictures.onnx"
    path.parent.mkdir(parents=True)
    onnx.save(picture_net(), path, save_as_external_data=True, location="pictures.data", size_threshold=0)
    return path


def test_a_file_with_weights_in_a_subfolder_is_built_and_asked_from_elsewhere(
    file: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    sizes = ("--axis", "h=8:16:16", "--axis", "w=8:16:16", "--batch", "1:2:4")
    built = alula(
        elsewhere, "build", "../models/deep/pictures.onnx", "-o", "out", "--target", "onnxruntime", *sizes
    )
    assert built.returncode == 0, built.stderr
    assert "out: pictures, tensors, fp32 on onnxruntime" in built.stdout
    assert "; verified; built in" in built.stdout
    np.savez(elsewhere / "in.npz", x=numbers(1, 3, 8, 8))
    asked = alula(elsewhere, "run", "out", "--feeds", "in.npz", "--out", "back.npz")
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.splitlines()[0].rstrip() == "pictures, tensors"
    with np.load(elsewhere / "back.npz") as back:
        assert sorted(back.files) == ["map", "scores"]
    np.savez(elsewhere / "in.npz", x=numbers(1, 3, 8, 24))
    outside = alula(elsewhere, "run", "out", "--feeds", "in.npz")
    assert (outside.returncode, outside.stderr) == (2, "alula: axis 'w' is 24; built for 8..16\n")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--inputs", "x=float32"), "--inputs 'x=float32': expected NAME=DTYPE[DIM,DIM,...]"),
        (("--inputs", "y=float32[1]"), "--inputs y=float32[1]: {file} has no input 'y'; it has x"),
        (("--inputs", "x=int8[n,3,h,w]"), "--inputs x=int8[n,3,h,w]: in {file} 'x' is float32"),
        (("--axis", "h=8:8:8"), "axis 'w' of pictures has no usual sizes"),
        (("--axis", "z=8:8:8"), "no axis 'z'; pictures has batch, h, w"),
        (("--task", "embeddings"), "{file} is an ONNX file; expected one of the tasks detection ("),
        (("--task", "text-recognition"), "{file}: there is no metadata 'character'"),
        (
            ("--inputs", "x=float32[1,3,8,8]", "--reference", "pytorch"),
            "reference 'pytorch' is not for pictures, which came as an ONNX file",
        ),
        (
            ("--inputs", "x=float32[1,3,8,8]", "--precision", "int8"),
            "precision 'int8' is calibrated and judged on your rows; give them with --data FILE",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(
    args: tuple[str, ...], said: str, file: Path, tmp_path: Path
) -> None:
    done = alula(tmp_path, "build", str(file), "-o", "out", "--target", "onnxruntime", *args)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("alula: " + said.format(file=file)), last
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (
            [node("MatMul", "x nowhere", "y")],
            "{file}: a MatMul reads 'nowhere', which nothing in the file gives",
        ),
        ([node("Foo", "x", "y")], "onnxruntime cannot compile {file}: Load model from {file} failed:"),
    ],
    ids=["a value that nothing gives", "no operator of ONNX"],
)
def test_a_file_that_is_not_valid_is_the_callers_and_nothing_else_is_printed(
    nodes: list[onnx.NodeProto], said: str, tmp_path: Path
) -> None:
    path = saved(model_of(nodes, [value("x", ["n", 4])], [value("y", ["n", 4])]), tmp_path / "m.onnx")
    done = alula(tmp_path, "build", str(path), "-o", "out", "--target", "onnxruntime")
    *phases, last = done.stderr.splitlines()
    assert last.startswith("alula: " + said.format(file=path)), last
    assert [line for line in phases if line[:2] not in {"+ ", "x "}] == []
    assert done.returncode == 2


def test_sizes_that_the_file_fails_on_are_told_once(tmp_path: Path) -> None:
    inputs = [value("a", ["n", "left"]), value("b", ["n", "right"])]
    path = saved(
        model_of([node("Add", "a b", "y")], inputs, [value("y", ["n", "left"])]), tmp_path / "m.onnx"
    )
    sizes = ("--axis", "left=2", "--axis", "right=3")
    done = alula(tmp_path, "build", str(path), "-o", "out", "--target", "onnxruntime", *sizes)
    *phases, last = done.stderr.splitlines()
    assert last.startswith("alula: m itself does not take what was drawn for it")
    assert "Name:'' Status Message: axis == 1 || axis == largest was false." in last
    assert [line for line in phases if line[:2] not in {"+ ", "x "}] == []
    assert done.returncode == 2


def test_a_data_file_that_is_missing_is_named(file: Path, tmp_path: Path) -> None:
    data = file.with_name("pictures.data")
    data.unlink()
    done = alula(tmp_path, "build", str(file), "-o", "out", "--target", "onnxruntime")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"alula: no data file at {data}, in which pictures.onnx keeps weights"
    )
