from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from alula.core.errors import InputError
from alula.families import locate, open_checkpoint, refuse_without_tokenizer
from alula.families.weights import read_weights

CONFIG = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 8}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with one weight and a Dense module."""
    root = tmp_path / "small"
    (root / "2_Dense").mkdir(parents=True)
    (root / "config.json").write_text(json.dumps(CONFIG))
    save_file({"weight": np.arange(6, dtype=np.float32).reshape(2, 3)}, root / "model.safetensors")
    modules = [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]
    (root / "modules.json").write_text(json.dumps(modules))
    (root / "2_Dense" / "config.json").write_text("{}")
    save_file({"linear.weight": np.ones((2, 2), np.float32)}, root / "2_Dense" / "model.safetensors")
    return root


def test_a_folder_is_named_after_itself(folder: Path) -> None:
    checkpoint = open_checkpoint(str(folder))
    assert (checkpoint.name, checkpoint.revision, checkpoint.root) == ("small", "local", folder)
    assert checkpoint.config == CONFIG


def test_the_digest_does_not_depend_on_the_place(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "elsewhere")
    first = open_checkpoint(str(folder)).digest
    assert open_checkpoint(str(tmp_path / "elsewhere")).digest == first
    monkeypatch.chdir(folder.parent)
    assert open_checkpoint("./small").digest == first


@pytest.mark.parametrize(
    "name", ["config.json", "2_Dense/config.json", "modules.json", "tokenizer_config.json"]
)
def test_the_digest_covers_settings(folder: Path, name: str) -> None:
    before = open_checkpoint(str(folder)).digest
    path = folder / name
    path.write_text((path.read_text() if path.exists() else "{}") + " ")
    assert open_checkpoint(str(folder)).digest != before


@pytest.mark.parametrize("name", ["model.safetensors", "2_Dense/model.safetensors"])
def test_the_digest_covers_every_byte_of_the_weights(folder: Path, name: str) -> None:
    before = open_checkpoint(str(folder)).digest
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    assert open_checkpoint(str(folder)).digest != before


def test_a_readme_does_not_change_the_digest(folder: Path) -> None:
    before = open_checkpoint(str(folder)).digest
    (folder / "README.md").write_text("new")
    assert open_checkpoint(str(folder)).digest == before


def test_hashing_a_hundred_megabytes_takes_well_under_a_second(folder: Path) -> None:
    save_file({"weight": np.zeros((25_000_000,), np.float32)}, folder / "model.safetensors")
    best = 10.0
    for _ in range(3):
        start = time.perf_counter()
        open_checkpoint(str(folder))
        best = min(best, time.perf_counter() - start)
    assert best < 1.0


def header(path: Path, entries: Any, data: bytes = b"") -> None:
    raw = json.dumps(entries).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)


@pytest.mark.parametrize("kept", [0, 7, 40, -1])
def test_a_file_that_was_cut_short_is_named(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"model.safetensors is cut short"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([1], "has a malformed safetensors header"),
        ({"w": {"dtype": "F32", "shape": [1]}}, "has a malformed safetensors header"),
        (
            {"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
            r"is malformed: w is F32 \[3\] in 8 bytes",
        ),
        ({"w": {"dtype": "F32", "shape": [3], "data_offsets": [8, 0]}}, "is malformed: w is F32"),
    ],
)
def test_a_malformed_file_is_named(folder: Path, entries: Any, text: str) -> None:
    header(folder / "model.safetensors", entries, bytes(8))
    with pytest.raises(InputError, match=rf"model.safetensors {text}"):
        open_checkpoint(str(folder))


def test_a_pointer_of_git_lfs_is_told_apart(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(InputError, match="run 'git lfs pull'"):
        open_checkpoint(str(folder))


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    header(folder / "model-1.safetensors", {})
    with pytest.raises(InputError, match=r"names shards that are not there: model-2.safetensors$"):
        open_checkpoint(str(folder))


def test_pickled_weights_are_refused_with_the_way_to_convert_them(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(
        InputError, match=r"has no model.safetensors .* t.BertModel.from_pretrained\('.*small'\)"
    ):
        open_checkpoint(str(folder))


def test_quantised_weights_are_refused_by_type(folder: Path) -> None:
    save_file({"weight": np.ones((2,), np.int8)}, folder / "model.safetensors")
    with pytest.raises(
        InputError, match=r"model.safetensors: weight is I8, expected one of F64, F32, F16, BF16"
    ):
        read_weights(folder)["weight"].read()


def test_what_is_not_a_model_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config.json; expected a model folder"):
        open_checkpoint(str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(
        InputError,
        match=r"file is a file, expected the folder that holds config.json and the weights, or an ONNX",
    ):
        open_checkpoint(str(tmp_path / "file"))


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere/at/all", "~/nowhere", "models/of/mine"])
def test_a_path_that_does_not_exist_is_named_without_asking_the_hub(model: str) -> None:
    with pytest.raises(InputError, match=rf"^no folder {model}$"):
        open_checkpoint(model)


@pytest.mark.parametrize("model", ["net.onnx", "models/net.onnx", "./net.onnx"])
def test_a_file_that_does_not_exist_is_no_name_on_the_hub(model: str) -> None:
    with pytest.raises(InputError, match=rf"^no file {model}$"):
        open_checkpoint(model)


def test_a_local_folder_has_no_revision(folder: Path) -> None:
    with pytest.raises(InputError, match=r"is a local folder, which has no revision 'v2'"):
        open_checkpoint(str(folder), "v2")


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_configuration_is_named(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(
        InputError, match=r"config.json (cannot be read as JSON|holds list, expected an object)"
    ):
        open_checkpoint(str(folder))


def test_without_a_network_a_hub_id_is_refused_with_what_to_do(tmp_path: Path) -> None:
    code = (
        "from alula.core.errors import InputError\n"
        "from alula.families import open_checkpoint\n"
        "try: open_checkpoint('someone/something')\n"
        "except InputError as error: print(error)\n"
    )
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=offline, capture_output=True, text=True, check=True
    )
    assert (
        "no folder someone/something, and fetching 'someone/something' at 'main' from the hub failed"
        in done.stdout
    )
    assert (
        "check the id, its revision and the network, log in if the model is gated, or give a local folder"
        in done.stdout
    )


def test_an_id_the_hub_cannot_have_is_refused() -> None:
    with pytest.raises(InputError, match=r"fetching 'not an id!' at 'main' from the hub failed"):
        open_checkpoint("not an id!")


@pytest.mark.parametrize("model", ["", " "])
def test_an_empty_name_is_not_the_working_folder(
    model: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=r"^the model's name is empty; expected a folder or a hub id$"):
        open_checkpoint(model)


def test_a_checkpoint_is_located_without_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert locate("empty") == tmp_path / "empty"
    with pytest.raises(InputError, match=r"^no folder \./nowhere$"):
        locate("./nowhere")


def test_a_folder_whose_name_cannot_be_printed_gives_a_name_that_can(folder: Path) -> None:
    odd = folder.with_name("a\nb\udcff c")
    folder.rename(odd)
    assert open_checkpoint(str(odd)).name == "a_b_ c"


def test_a_checkpoint_without_a_tokenizer_is_refused_with_the_cure(folder: Path) -> None:
    checkpoint = open_checkpoint(str(folder))
    with pytest.raises(
        InputError, match=r"small has no tokenizer.json, .* use_fast=True.* with --no-tokenizer$"
    ):
        refuse_without_tokenizer(checkpoint)
    (folder / "tokenizer.json").write_text("{}")
    refuse_without_tokenizer(checkpoint)
