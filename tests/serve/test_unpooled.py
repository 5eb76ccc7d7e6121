"""Vectors of tokens: built where they are asked for, proved like any output, and fetched only for who wants them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import Running, running

from alula.bundles import Bundle
from alula.bundles.rebuild import rebuild_command
from alula.core.engine import Picking
from alula.core.errors import InputError
from alula.core.tensor import Array, Feeds
from alula.core.words import TOKENS
from alula.engines import backend
from alula.serve import unpooled
from alula.serve.options import ServeOptions
from alula.serve.outcome import Outcome
from alula.serve.service import Service

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import tiny  # noqa: E402 - likewise

from alula.build import BuildRequest, build  # noqa: E402 - likewise
from alula.core.progress import Silent  # noqa: E402 - likewise

ENGINE = (sys.executable, "-m", "alula.serve.engine_process")
TEXTS = ["the cat sat on the mat", "rome", "who wrote the red code in rome on monday"]


def built(checkpoint: Path, to: Path, target: str = "onnxruntime", **more: Any) -> Bundle:
    request = BuildRequest(
        model=str(checkpoint), to=to, use_cache=False, precision="fp32", target=target, **more
    )
    return build(request, Silent()).bundle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("tokens") / "bert", task="embeddings")


@pytest.fixture(scope="module", params=["onnxruntime", "openvino"])
def bundle(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    to = tmp_path_factory.mktemp("tokens") / "with"
    return built(folder, to, request.param, name="with", token_embeddings=True)


@pytest.fixture(scope="module")
def server(bundle: Bundle, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One model that gives its tokens, behind one that does not."""
    without = built(folder, tmp_path_factory.mktemp("tokens") / "without", name="without")
    with running([without.root, bundle.root], engine_command=ENGINE, threads=1) as server:
        yield server


def states(folder: Path, text: str) -> Array:
    """What transformers gives for each token."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        found: Array = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()
    return found


def test_every_token_has_the_vector_that_transformers_gives(server: Running, folder: Path) -> None:
    answer = server.post("/embed_all", {"inputs": TEXTS})
    assert answer.status_code == 200, answer.text
    for text, found in zip(TEXTS, answer.json(), strict=True):
        expected = states(folder, text)
        assert np.shape(found) == expected.shape
        assert np.abs(np.array(found) - expected).max() < 1e-4
    (alone,) = server.post("/embed_all", {"inputs": TEXTS[1], "model": "with"}).json()
    assert np.abs(np.array(alone) - states(folder, TEXTS[1])).max() < 1e-4


def test_the_pooled_vector_is_that_of_a_bundle_without(server: Running) -> None:
    one, other = (
        server.post("/embed", {"inputs": TEXTS, "model": name}).json() for name in ("with", "without")
    )
    assert np.abs(np.array(one) - np.array(other)).max() < 1e-5


def test_tensors_have_them_where_they_are_named_or_nothing_is(server: Running, folder: Path) -> None:
    given = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXTS[0]]}

    def outputs(**more: Any) -> Mapping[str, Any]:
        answer = server.post("/v2/models/with/infer", {"inputs": [given], **more}).json()
        return {one["name"]: one for one in answer["outputs"]}

    assert set(outputs()) == {"embedding", TOKENS}
    assert set(outputs(outputs=[{"name": "embedding"}])) == {"embedding"}
    tokens = outputs(outputs=[{"name": TOKENS}])[TOKENS]
    expected = states(folder, TEXTS[0])
    assert tokens["shape"] == [1, *expected.shape]
    assert np.abs(np.array(tokens["data"]) - expected.reshape(-1)).max() < 1e-4


def test_a_model_without_them_says_so(server: Running) -> None:
    refused = server.post("/embed_all", {"inputs": "rome", "model": "without"})
    message = "without gives one vector for each text, and none for tokens; build it with --token-embeddings"
    assert (refused.status_code, refused.json()["error"]) == (400, message)
    told = {one["id"]: one["token_embeddings"] for one in server.get("/info")["models"]}
    assert told == {"without": False, "with": True}
    described = server.get("/openapi.json")["paths"]["/embed_all"]["post"]["requestBody"]["content"]
    (variant,) = described["application/json"]["schema"]["anyOf"]
    assert variant["properties"]["model"]["enum"] == ["with", None]


def test_more_numbers_than_an_answer_may_have_are_refused_before_they_are_made(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpooled, "MOST_NUMBERS", 300)
    ran: list[Feeds] = []
    service = service_of(bundle, ran, [])
    from alula.serve.bodies import Fields  # noqa: PLC0415
    from alula.serve.catalogue import Catalogue  # noqa: PLC0415

    async def ask() -> None:
        async with service.at_work():
            await unpooled.embed_all(Catalogue(services=(service,)), Fields({"inputs": ["rome"] * 4}))

    with pytest.raises(
        InputError, match="12 tokens of 32 numbers each in one request; the limit is 300 numbers"
    ):
        asyncio.run(ask())
    assert ran == []


def service_of(bundle: Bundle, ran: list[Feeds], asked: list[Sequence[str] | None]) -> Service:
    session = backend(bundle.engine("encoder").backend).open(bundle.engine("encoder"), threads=1)
    assert isinstance(session, Picking)

    async def run(feeds: Feeds, wanted: Sequence[str] | None = None) -> Outcome:
        ran.append(feeds)
        asked.append(wanted)
        assert wanted is not None
        return Outcome(outputs=session.pick(feeds, wanted))

    return Service(bundle, run, ServeOptions(bundles=(bundle.root,)), lambda name, ran: None)


def test_they_are_fetched_only_for_a_batch_in_which_somebody_wants_them(bundle: Bundle) -> None:
    asked: list[Sequence[str] | None] = []
    service = service_of(bundle, [], asked)
    from dataclasses import replace  # noqa: PLC0415

    plain = [service.codec.encode(text) for text in TEXTS]
    mixed = [plain[0], replace(plain[1], unpooled=True), plain[2]]

    async def calls() -> list[Sequence[Feeds]]:
        return [(await service._call(rows)).results for rows in (plain, mixed)]

    first, second = asyncio.run(calls())
    assert asked == [["embedding"], ["embedding", TOKENS]]
    assert [set(row) for row in first] == [{"embedding"}] * 3
    assert [set(row) for row in second] == [{"embedding"}, {"embedding", TOKENS}, {"embedding"}]
    assert second[1][TOKENS].shape == (len(plain[1].ids), 32)


def test_a_session_that_picks_gives_what_it_gives_in_full(bundle: Bundle) -> None:
    engine = bundle.engine("encoder")
    session = backend(engine.backend).open(engine, threads=1)
    assert isinstance(session, Picking)
    feeds = bundle.stored.feeds[0]
    whole = session.run(feeds)
    assert set(whole) == {"embedding", TOKENS}
    for name in whole:
        picked = session.pick(feeds, [name])
        assert set(picked) == {name}
        assert picked[name].tobytes() == whole[name].tobytes()
    session.close()


def test_they_are_held_to_pytorch_and_named_in_the_command_that_builds_them(bundle: Bundle) -> None:
    held = {
        check.metric for check in bundle.checks if check.output == TOKENS and check.reference == "pytorch"
    }
    assert held == {"cosine", "max_error"}
    assert bundle.verified
    assert "--token-embeddings" in rebuild_command(bundle.manifest, bundle.root)


def test_a_traced_model_has_them_too(tmp_path: Path) -> None:
    checkpoint = tiny.checkpoint(tmp_path / "deberta", "deberta-v2")
    bundle = built(checkpoint, tmp_path / "bundle", token_embeddings=True)
    assert bundle.verified
    assert {check.output for check in bundle.checks} == {"embedding", TOKENS}


def test_only_a_sentence_encoder_has_them(tmp_path: Path) -> None:
    checkpoint = tiny.checkpoint(tmp_path / "tagger", task="token-classification")
    with pytest.raises(InputError, match="token embeddings are of models that embed texts"):
        built(checkpoint, tmp_path / "bundle", token_embeddings=True)
