"""What cannot be built is refused by `alula build` soon, by name, in one line, and nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
from safetensors.numpy import save_file

SWIN = {
    "architectures": ["SwinForImageClassification"],
    "model_type": "swin",
    "hidden_size": 8,
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 3,
    "vocab_size": 10,
    "id2label": {"0": "cat", "1": "dog"},
}


def refused(folder: Path, *args: str, **env: str) -> str:
    """The one line that `alula build` says, on a machine whose hub is not there."""
    offline = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "0"}
    cache = {"ALULA_CACHE": str(folder / "cache")}
    start = perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "alula", "build", "-o", str(folder / "out"), *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **offline, **cache, **env},
    )
    assert perf_counter() - start < 20  # one to two seconds where nothing else runs
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert not (folder / "out").exists()
    assert not (folder / "cache").exists()
    progress, line = done.stderr.splitlines()[:-1], done.stderr.splitlines()[-1]
    assert progress in ([], ["x read the checkpoint"])
    assert line.startswith("alula: ")
    return line.removeprefix("alula: ")


@pytest.mark.parametrize("task", [(), ("--task", "embeddings"), ("--task", "sequence-classification")])
def test_an_image_model_is_refused_by_name(task: tuple[str, ...], tmp_path: Path) -> None:
    # huggingface/transformers#33226: a ViT exported at one image size gave wrong answers at others.
    model = tmp_path / "swin"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(SWIN))
    positions = np.zeros((1, 5, 8), np.float32)
    save_file({"swin.embeddings.position_embeddings": positions}, model / "model.safetensors")
    assert refused(tmp_path, str(model), *task) == (
        "SwinForImageClassification (model type 'swin') reads images; "
        "only models that read token ids alone, and classifiers of images of the model types "
        "deit, dinov2, efficientnet, resnet, vit, are built so far"
    )


def test_without_a_network_a_hub_id_says_what_to_do(tmp_path: Path) -> None:
    said = refused(tmp_path, "sentence-transformers/all-MiniLM-L6-v2")
    assert said.startswith("no folder sentence-transformers/all-MiniLM-L6-v2, and fetching ")
    assert said.endswith(
        "check the id, its revision and the network, log in if the model is gated, or give a local folder"
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--revision", "v2"), "{model} is a local folder, which has no revision 'v2'"),
        (("--opset", "16"), "opset 16 is not one of 17..24"),
        (("--opset", "25"), "opset 25 is not one of 17..24"),
        (("--task", "reranking"), "reranking needs a classifier with one label, the checkpoint has 2"),
        (("--task", "question-answering"), "task question-answering needs the layer 'qa_outputs'"),
        (("--pooling", "median"), "pooling 'median' is not one of: mean, cls"),
        (
            ("--target", "fake"),
            "no target 'fake'; there are auto, cpu, openvino, onnxruntime, tensorrt, tensorrt-rtx",
        ),
        (
            ("--target", "torch"),
            "target 'torch' is what bundles are compared with, not built for; there are auto",
        ),
        (("--batch", "1:1:99999999999999999999"), "axis 'batch': got 99999999999999999999, expected at most"),
        (("--name", ""), "--name '': expected one line of characters that can be printed"),
        (("--name", "a\nb"), "--name 'a\\nb': expected one line"),
        (("--name", "a\x1b[2J"), "--name 'a\\x1b[2J': expected one line"),
        (("--name", "a\udcff"), "--name 'a\\udcff': expected one line"),
        (("-o", ""), "--output is empty; expected the bundle's folder"),
        (("-o", "out\udcff"), "--output 'out\\udcff': the path is not UTF-8, and runtimes open no other"),
        (
            ("--task", "reranking", "--pooling", "cls"),
            "reranking needs a classifier with one label",
        ),
    ],
)
def test_a_choice_that_does_not_fit_is_refused_by_name(
    args: tuple[str, ...], said: str, minilm_folder: Path, tmp_path: Path
) -> None:
    assert refused(tmp_path, str(minilm_folder), *args).startswith(said.format(model=minilm_folder))


def test_an_empty_model_is_not_the_working_folder(
    minilm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(minilm_folder)
    assert refused(tmp_path, "") == "the model's name is empty; expected a folder or a hub id"


def test_a_checkpoint_without_tokenizer_is_refused_before_any_work(
    minilm_folder: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(minilm_folder, model, ignore=shutil.ignore_patterns("tokenizer.json"))
    said = refused(tmp_path, str(model))
    assert said.startswith(
        f"{model} has no tokenizer.json, without which a bundle cannot take texts; make one"
    )
    assert said.endswith("or build for token ids alone with --no-tokenizer")
    # Asked for, it is not what the next refusal is about.
    assert refused(tmp_path, str(model), "--no-tokenizer", "--task", "reranking").startswith(
        "reranking needs"
    )


def test_a_configuration_that_does_not_fit_the_weights_is_refused_without_torch(
    minilm_folder: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(minilm_folder, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "hidden_size": 768}))
    command = [sys.executable, "-m", "alula", "build", str(model), "-o", str(tmp_path / "out")]
    env = {**os.environ, "ALULA_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [*command, "--reference", "own-graph"], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "alula: embeddings.position_embeddings.weight is 512 x 384, its config.json calls for 512 x 768"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        ("no/where.svg", "there is no folder no; make it first"),
        (".", "is a folder, expected a file to write"),
    ],
)
def test_a_figure_that_cannot_be_drawn_is_refused_before_measuring(
    figure: str, said: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "alula", "bench", "bundle", "--figure", figure]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"alula: --figure {figure}: {said}\n")
