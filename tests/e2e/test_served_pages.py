"""Questions about pages over HTTP: the answers of the same bundle in a program, limits held before decoding."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import served
from numpy.typing import NDArray
from PIL import Image

from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.core.progress import Silent
from alula.looking import Looker

pytest.importorskip("transformers.models.hunyuan_vl")
import tiny_hunyuan

pytestmark = pytest.mark.timeout(300)

REAL = (sys.executable, "-m", "alula.serve.engine_process")
CHAT = "/v1/chat/completions"
SIZES = ((8, 12), (20, 6), (4, 4), (30, 30))
TOKENS = 24


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("pages")
    tiny_hunyuan.checkpoint(folder / "model")
    request = BuildRequest(
        model=str(folder / "model"), to=folder / "B", target="openvino", precision="fp32", use_cache=False
    )
    return build(request, Silent()).bundle


@pytest.fixture(scope="module")
def server(bundle: Bundle) -> Iterator[served.Running]:
    limits: dict[str, Any] = {"max_client_batch": 4, "max_image_bytes": 200_000, "max_body_bytes": 20_000}
    with served.running(
        [bundle.root], engine_command=REAL, threads=1, max_image_pixels=40_000, **limits
    ) as running:
        yield running


def data_url(page: NDArray[np.uint8]) -> str:
    file = io.BytesIO()
    Image.fromarray(page).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def asked(pages: Sequence[NDArray[np.uint8]], **more: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": data_url(page)}} for page in pages]
    content = [*parts, {"type": "text", "text": "Read!"}]
    body = {"max_tokens": TOKENS, "ignore_eos": True}
    return {"messages": [{"role": "user", "content": content}], **body, **more}


def test_pages_sent_at_once_have_the_answers_of_a_program(server: served.Running, bundle: Bundle) -> None:
    pages = [[tiny_hunyuan.page(*size, seed=at)] for at, size in enumerate(SIZES)]
    pages.append([tiny_hunyuan.page(8, 8, seed=7), tiny_hunyuan.page(4, 10, seed=8)])
    with ThreadPoolExecutor(len(pages)) as pool:
        answers = list(pool.map(lambda page: server.post(CHAT, asked(page)), pages))
    expected: list[str] = [""] * len(pages)
    read = []
    with Looker.open(bundle, cache_bytes=1 << 26, threads=1) as looker:
        requests = [
            looker.request("Read!", page, {"max_tokens": TOKENS, "ignore_eos": True}) for page in pages
        ]
        read = [request.read for request in requests]
        for at, piece in looker.answers(requests):
            expected[at] += piece.text
    assert len(set(expected)) == len(expected)
    for answer, text, tokens in zip(answers, expected, read, strict=True):
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["choices"][0]["message"]["content"] == text
        assert body["usage"]["prompt_tokens"] == tokens


def test_an_answer_about_a_page_is_streamed(server: served.Running) -> None:
    page = [tiny_hunyuan.page(8, 12)]
    whole = server.post(CHAT, asked(page)).json()["choices"][0]["message"]["content"]
    response = server.post(CHAT, asked(page, stream=True))
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    deltas = [json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines]
    assert "".join(deltas) == whole
    assert len(deltas) > TOKENS // 2


@pytest.mark.parametrize(
    ("url", "status", "said"),
    [
        ("https://example.com/page.png", 400, "is a URL, and this server fetches nothing"),
        ("data:image/png;base64,!!!", 400, "image 1 is not base64"),
        ("data:image/png;base64,aGVsbG8=", 400, "image 1 cannot be decoded"),
        (None, 400, "image_url has no url"),
    ],
)
def test_what_is_no_image_is_refused(server: served.Running, url: str | None, status: int, said: str) -> None:
    body = asked([tiny_hunyuan.page(4, 4)])
    body["messages"][0]["content"][0]["image_url"] = {"url": url}
    answer = server.post(CHAT, body)
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]


def test_limits_hold_before_anything_is_decoded(server: served.Running) -> None:
    blank = np.zeros((400, 400, 3), np.uint8)
    answer = server.post(CHAT, asked([blank]))
    assert answer.status_code == 400
    assert "has 400 x 400 pixels; expected at most 40000 in all" in answer.json()["error"]["message"]
    answer = server.post(CHAT, asked([tiny_hunyuan.page(4, 4)] * 5))
    assert (answer.status_code, "5 images in one request" in answer.text) == (413, True)
    noisy = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    assert server.post(CHAT, asked([noisy])).status_code == 413
    assert server.post("/v1/completions", {"prompt": "x" * 30_000}).status_code == 413
    answer = server.post("/v1/completions", {"prompt": "<image><patch></image>"})
    assert "has places for 1 images, 0 are given" in answer.json()["error"]["message"]
    assert server.post(CHAT, asked([tiny_hunyuan.page(4, 4)])).status_code == 200


def test_a_model_that_reads_no_images_says_so(tmp_path: Path) -> None:
    with served.running([served.make_writer(tmp_path / "chat")]) as plain:
        answer = plain.post(CHAT, asked([tiny_hunyuan.page(4, 4)]))
    assert answer.status_code == 400
    assert "expected 'text', which is all that this model reads" in answer.json()["error"]["message"]
