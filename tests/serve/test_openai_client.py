"""OpenAI's own client, as it comes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import Running, running

openai = pytest.importorskip("openai")


@pytest.fixture
def client(writing: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{writing.url}/v1", api_key="none", max_retries=0) as client:
        yield client


CHAT = "tiny/text-generation"
HELLO = [{"role": "user", "content": "hello"}]


def test_models_are_listed_and_found(client: Any, writing: Running) -> None:
    listed = [model.id for model in client.models.list()]
    assert listed == [one["id"] for one in writing.get("/v1/models")["data"]]
    assert client.models.retrieve(CHAT).owned_by == "alula"


def test_embeddings_come_as_floats_and_as_bytes(client: Any) -> None:
    # Unasked the client has them sent in base64 and decodes them.
    usual = client.embeddings.create(model="tiny/embeddings", input=["a b", "hello"])
    floats = client.embeddings.create(
        model="tiny/embeddings", input=["a b", "hello"], encoding_format="float"
    )
    assert [one.embedding for one in usual.data] == [one.embedding for one in floats.data]
    raw = client.embeddings.create(model="tiny/embeddings", input="a b", encoding_format="base64")
    content = raw.data[0].embedding
    assert isinstance(content, str)
    assert np.frombuffer(base64.b64decode(content), "<f4").tolist() == usual.data[0].embedding
    short = client.embeddings.create(model="tiny/embeddings", input="a b", dimensions=2)
    assert len(short.data[0].embedding) == 2
    assert usual.usage.total_tokens == usual.usage.prompt_tokens == 7


def test_a_chat_is_answered_whole_and_in_pieces(client: Any) -> None:
    whole = client.chat.completions.create(model=CHAT, messages=HELLO, max_tokens=8)
    said = whole.choices[0].message.content
    assert said == "hello"
    assert whole.usage
    assert whole.usage.completion_tokens == 6
    assert whole.choices[0].finish_reason == "stop"
    options = {"include_usage": True}
    pieces = list(
        client.chat.completions.create(
            model=CHAT, messages=HELLO, max_tokens=8, stream=True, stream_options=options
        )
    )
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == said
    assert pieces[-1].usage == whole.usage
    with client.chat.completions.stream(model=CHAT, messages=HELLO, max_tokens=8) as stream:
        assert stream.get_final_completion().choices[0].message.content == said


def test_a_text_is_gone_on_with(client: Any) -> None:
    several = client.completions.create(model=CHAT, prompt=["a|", "b|"], max_tokens=3, n=2, seed=1)
    assert len(several.choices) == 4
    streamed = client.completions.create(model=CHAT, prompt="ab|", max_tokens=3, stream=True)
    assert "".join(piece.choices[0].text for piece in streamed)


def test_errors_are_the_clients_own(client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=CHAT, messages=HELLO, tools=[{"type": "function"}])
    assert refused.value.param == "tools"
    assert refused.value.request_id


def test_a_key_is_sent_as_the_client_sends_it(bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]], api_keys="secret-of-ann") as server:
        base = f"{server.url}/v1"
        with openai.OpenAI(base_url=base, api_key="secret-of-ann") as client:
            assert client.embeddings.create(model="embeddings", input="a").data
        with (
            openai.OpenAI(base_url=base, api_key="another") as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.embeddings.create(model="embeddings", input="a")
