"""Texts that share rows, from the build to the answer: each gets its own vector, and almost nothing is padded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import Running, running

from alula.bundles import Bundle, rebuild_command
from alula.codecs import TextCodec, fit, within
from alula.core.errors import InputError
from alula.core.packing import without_packing
from alula.core.profile import Range
from alula.core.words import TOKENS
from alula.engines import backend
from alula.exposition import Reading

pytest.importorskip("torch")
pytest.importorskip("transformers")
import tiny

from alula.build import BuildRequest, build
from alula.choices import resolve_request
from alula.core.progress import Silent

ENGINE = (sys.executable, "-m", "alula.serve.engine_process")
WORDS = [
    "who",
    "wrote",
    "the",
    "red",
    "code",
    "in",
    "rome",
    "on",
    "monday",
    "the",
    "cat",
    "sat",
    "on",
    "the",
    "mat",
]
TEXTS = [" ".join(WORDS[at : at + count]) for count in (1, 2, 3, 5, 8, 12, 15) for at in (0, 1, 2)]


def built(checkpoint: Path, to: Path, **more: Any) -> Bundle:
    asked: dict[str, Any] = {"target": "openvino", "precision": "fp32", "use_cache": False, **more}
    return build(BuildRequest(model=str(checkpoint), to=to, **asked), Silent()).bundle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("packed") / "bert", task="embeddings")


@pytest.fixture(scope="module")
def bundle(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    to = tmp_path_factory.mktemp("packed") / "packed"
    return built(folder, to, name="packed", token_embeddings=True)


@pytest.fixture(scope="module")
def server(bundle: Bundle, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    to = tmp_path_factory.mktemp("packed") / "padded"
    padded = built(folder, to, name="padded", packed=False, token_embeddings=True)
    with running([padded.root, bundle.root], engine_command=ENGINE, threads=2) as server:
        yield server


def asked(server: Running, path: str, model: str, inputs: object) -> Any:
    answer = server.post(path, {"inputs": inputs, "model": model})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_it_is_proved_and_its_command_builds_it_again(bundle: Bundle) -> None:
    assert bundle.verified
    assert "--packed" in rebuild_command(bundle.manifest, bundle.root)


LONG = {"length": Range(2, 128, 600)}


@pytest.mark.parametrize(
    ("model_type", "most", "asked", "packed"),
    [
        ("bert", 512, {}, True),
        ("bert", 600, {}, True),
        ("bert", 600, {"axes": LONG}, False),
        ("bert", 600, {"axes": LONG, "packed": True}, True),
        ("bert", 512, {"packed": False}, False),
        ("bert", 512, {"target": "onnxruntime"}, False),
        ("mpnet", 600, {}, False),
    ],
)
def test_texts_are_packed_where_that_gains_unless_it_is_said(
    tmp_path: Path, model_type: str, most: int, asked: dict[str, Any], packed: bool
) -> None:
    checkpoint = tiny.checkpoint(tmp_path / "model", model_type, max_position_embeddings=most)
    request = BuildRequest(
        model=str(checkpoint), to=tmp_path, **{"target": "openvino", "precision": "fp32", **asked}
    )
    assert resolve_request(request, Silent()).packed is packed


def test_a_padded_bundle_is_built_again_as_one(bundle: Bundle) -> None:
    engine = bundle.engine("encoder")
    graph = replace(engine.graph, inputs=without_packing(engine.inputs))
    manifest = replace(bundle.manifest, engines={"encoder": replace(engine, graph=graph)})
    assert "--no-packed" in rebuild_command(manifest, bundle.root)


def test_a_session_takes_the_padded_batch_alone(bundle: Bundle) -> None:
    engine = bundle.engine("encoder")
    with closing(backend("openvino").open(engine, threads=1)) as session:
        assert session.inputs == bundle.model.part("encoder").inputs
        spec = within(bundle.model, engine.plan.profile)
        codec = TextCodec.open(bundle.tokenizer, spec)
        rows = [codec.encode(text) for text in TEXTS]
        together = session.run(fit(rows, spec, engine.plan.profile))["embedding"]
        alone = [session.run(fit([row], spec, engine.plan.profile))["embedding"][0] for row in rows]
        assert np.abs(together - np.stack(alone)).max() < 1e-5


def test_whoever_asks_at_once_gets_the_vectors_of_a_padded_model(server: Running) -> None:
    wanted = np.array(asked(server, "/embed", "padded", TEXTS))
    assert np.abs(np.array(asked(server, "/embed", "packed", TEXTS)) - wanted).max() < 1e-5
    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(lambda text: asked(server, "/embed", "packed", text)[0], TEXTS * 3))
    assert np.abs(np.array(found) - np.concatenate([wanted] * 3)).max() < 1e-5


def test_tokens_have_their_own_vectors_too(server: Running) -> None:
    for one, other in zip(
        asked(server, "/embed_all", "padded", TEXTS),
        asked(server, "/embed_all", "packed", TEXTS),
        strict=True,
    ):
        assert np.shape(one) == np.shape(other)
        assert np.abs(np.array(one) - np.array(other)).max() < 1e-4


def test_what_is_padded_says_nothing_of_another_text(bundle: Bundle) -> None:
    """Where a mask keeps nothing, there is the state of the same text's first token."""
    ids = np.array([[2, 9, 3, 0, 0, 0, 0, 0], [2, 7, 8, 9, 10, 11, 12, 3]])
    mask = (ids != 0).astype(np.int64)
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    with closing(backend("openvino").open(bundle.engine("encoder"), threads=1)) as session:
        first, _ = session.run(feeds)[TOKENS]
    assert np.array_equal(first[3:], np.repeat(first[:1], 5, axis=0))


def test_almost_nothing_is_padded(server: Running) -> None:
    before = reading(server)
    asked(server, "/embed", "packed", TEXTS)
    tokens, cells = (now - then for now, then in zip(reading(server), before, strict=True))
    assert 0.85 * cells <= tokens <= cells


def reading(server: Running) -> tuple[float, float]:
    found = Reading.parse(server.client.get("/metrics").text, 0.0)
    tokens, cells = (found.value(f"alula_{name}_total", model="packed") for name in ("tokens", "batch_cells"))
    return tokens or 0.0, cells or 0.0


@pytest.mark.parametrize(
    ("model_type", "target", "message"),
    [
        ("bert", "onnxruntime", "--packed is for openvino, and this build is for onnxruntime"),
        ("mpnet", "openvino", "is of the family 'mpnet'; texts are packed into rows by bert, "),
    ],
)
def test_what_cannot_be_packed_is_refused(tmp_path: Path, model_type: str, target: str, message: str) -> None:
    checkpoint = tiny.checkpoint(tmp_path / "model", model_type)
    with pytest.raises(InputError, match=message):
        built(checkpoint, tmp_path / "bundle", target=target, packed=True)
