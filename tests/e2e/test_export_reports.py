"""Public reports about exported files, on whole bundles: sizes, folders, tied weights, missing inputs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
import torch
import transformers
from safetensors.numpy import load_file, save_file

from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.codecs import TextCodec
from alula.core.profile import Range
from alula.core.progress import Silent
from alula.engines import backend
from alula.local import local_engine

AXES = {"batch": Range(1, 2, 4), "length": Range(2, 8, 32)}
# Large enough that its weights leave the ONNX file.
WIDE: dict[str, Any] = {"vocab_size": 20_000, "hidden_size": 256, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("wide") / "model", **WIDE)


def built(model: Path, to: Path) -> Bundle:
    request = BuildRequest(model=str(model), to=to, precision="fp32", axes=AXES, use_cache=False)
    return build(request, Silent()).bundle


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (folder / "graphs").iterdir()}


def test_building_again_into_a_folder_leaves_its_size_and_every_byte_is_used(
    wide: Path, tmp_path: Path
) -> None:
    """The report onnx/onnx#6655: external data doubled with each export into one folder."""
    first = built(wide, tmp_path / "out")
    before = sizes(first.root)
    again = built(wide, tmp_path / "out")
    assert sizes(again.root) == before
    assert again.engine("encoder").graph.digest == first.engine("encoder").graph.digest
    (data,) = (again.root / "graphs").glob("*.data")
    (path,) = (again.root / "graphs").glob("*.onnx")
    spans = []
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        where = {entry.key: entry.value for entry in tensor.external_data}
        if where:
            assert where["location"] == data.name
            spans.append((int(where["offset"]), int(where["offset"]) + int(where["length"])))
    spans.sort()
    ends = [0, *(end for _, end in spans)]
    gaps = [start - end for (start, _), end in zip(spans, ends, strict=False)]
    assert len(spans) > 1
    assert all(0 <= gap < 4096 for gap in gaps), "more between two tensors than alignment asks for"
    assert spans[-1][1] == data.stat().st_size


@pytest.mark.parametrize("target", ["openvino", "onnxruntime"])
def test_a_bundle_is_built_from_any_folder_and_lives_in_any_other(
    target: str, wide: Path, tmp_path: Path
) -> None:
    """The report NVIDIA/TensorRT#4257: the weights' file was looked up in the working folder."""
    (tmp_path / "some" / "where").mkdir(parents=True)
    os.symlink(wide, tmp_path / "some" / "model")
    options = (
        "--target",
        target,
        "--precision",
        "fp32",
        "--length",
        "2:8:32",
        "--batch",
        "1:2:4",
        "--no-cache",
    )
    done = subprocess.run(
        [sys.executable, "-m", "alula", "build", "../model", "-o", "../out/bundle", *options],
        cwd=tmp_path / "some" / "where",
        env={**os.environ, "ALULA_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "some" / "where").iterdir())
    moved = tmp_path / "moved"
    shutil.move(tmp_path / "some" / "out" / "bundle", moved)
    manifest = (moved / "manifest.json").read_text()
    assert str(tmp_path) not in manifest.replace(json.dumps("../model"), "")
    # From elsewhere, so that the portable graph and its weights are read again.
    here = re.search(r'"target": "([^"]+)"', manifest)
    assert here
    for text in (manifest, manifest.replace(here[1], f"{target} of another machine")):
        (moved / "manifest.json").write_text(text)
        ran = subprocess.run(
            [sys.executable, "-m", "alula", "run", str(moved), "--text", "the cat sat", "--json"],
            cwd="/",
            env={**os.environ, "ALULA_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert ran.returncode == 0, ran.stderr
        assert len(json.loads(ran.stdout)["rows"][0]["embedding"]) == WIDE["hidden_size"]


def test_tied_weights_are_in_the_bundle_once(wide: Path, tmp_path: Path) -> None:
    """The report huggingface/optimum#1326: embedding and head stored twice where they are one."""
    model = Path(shutil.copytree(wide, tmp_path / "model"))
    tensors = load_file(model / "model.safetensors")
    used = sum(array.nbytes for name, array in tensors.items() if not name.startswith("pooler."))
    tensors["cls.predictions.decoder.weight"] = tensors["embeddings.word_embeddings.weight"].copy()
    save_file(tensors, model / "model.safetensors")
    bundle = built(model, tmp_path / "out")
    assert sum(sizes(bundle.root).values()) == pytest.approx(used, rel=0.02)


def test_a_tokenizer_without_token_types_gets_zeros_for_a_model_that_wants_them(tmp_path: Path) -> None:
    """The report huggingface/optimum#1758: a BERT with XLM-R's tokenizer, and no token_type_ids at run time."""
    model = tiny.checkpoint(tmp_path / "model", pad_token_id=1)
    tiny.tokenizer(roberta=True).save(str(model / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
    }
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    bundle = built(model, tmp_path / "out")
    assert "token_type_ids" in {given.name for given in bundle.model.part("encoder").inputs}
    codec = TextCodec.open(bundle.tokenizer, bundle.model)
    rows = [codec.encode("the cat sat on the mat"), codec.encode_pair("who", "ada wrote code")]
    feeds = codec.collate(rows)
    assert not feeds["token_type_ids"].any()
    assert {array.dtype for array in feeds.values()} == {np.dtype("int64")}
    engine = local_engine(bundle)
    with closing(backend(engine.backend).open(engine)) as session:
        found = np.asarray(session.run(feeds)["embedding"], np.float32)
    eager = transformers.AutoModel.from_pretrained(model).eval()
    given = {name: torch.from_numpy(np.array(array)) for name, array in feeds.items()}
    with torch.no_grad():
        states = eager(**given).last_hidden_state.numpy()
    mask = np.asarray(feeds["attention_mask"], np.float32)[..., None]
    np.testing.assert_allclose(found, (states * mask).sum(1) / mask.sum(1), atol=1e-5)


def test_the_second_text_of_a_pair_is_told_from_the_first(tmp_path: Path) -> None:
    """elixir-nx/bumblebee#444: pairs were scored without saying which text a token is of."""
    model = tiny.checkpoint(tmp_path / "model", "bert", "reranking", num_labels=1, initializer_range=0.5)
    bundle = built(model, tmp_path / "out")
    codec = TextCodec.open(bundle.tokenizer, bundle.model)
    engine = local_engine(bundle)
    with closing(backend(engine.backend).open(engine)) as session:
        feeds = codec.collate(
            [codec.encode_pair("the cat", "ada wrote code"), codec.encode_pair("who", "the mat")]
        )
        found = np.asarray(session.run(feeds)["logits"], np.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    pairs = (["the cat", "who"], ["ada wrote code", "the mat"])
    given = tokenizer(*pairs, padding=True, return_tensors="pt", return_token_type_ids=True)
    assert given["token_type_ids"].any()
    eager = transformers.AutoModelForSequenceClassification.from_pretrained(model).eval()
    with torch.no_grad():
        expected = eager(**given).logits.numpy()
        blind = eager(**{**given, "token_type_ids": torch.zeros_like(given["token_type_ids"])}).logits.numpy()
    assert np.abs(blind - expected).min() > 1e-2
    np.testing.assert_allclose(found, expected, atol=1e-4)
