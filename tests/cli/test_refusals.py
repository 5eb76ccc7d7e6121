"""What cannot be built is refused by `alula build` soon, by name, in one line, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
from safetensors.numpy import save_file

VIT = {
    "architectures": ["ViTForImageClassification"],
    "model_type": "vit",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
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
    model = tmp_path / "vit"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(VIT))
    positions = np.zeros((1, 5, 8), np.float32)
    save_file({"vit.embeddings.position_embeddings": positions}, model / "model.safetensors")
    assert refused(tmp_path, str(model), *task) == (
        "ViTForImageClassification (model type 'vit') reads images; "
        "only models that read token ids alone are built so far"
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
            ("--task", "reranking", "--pooling", "cls"),
            "reranking needs a classifier with one label",
        ),
    ],
)
def test_a_choice_that_does_not_fit_is_refused_by_name(
    args: tuple[str, ...], said: str, minilm_folder: Path, tmp_path: Path
) -> None:
    assert refused(tmp_path, str(minilm_folder), *args).startswith(said.format(model=minilm_folder))
