"""Models that write, from checkpoint to streams of `alula serve`: the words of transformers, in company too."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny_decoders
import tiny_t5
import torch
import transformers
from letters import letters
from served import Running, metric, wait_until

from alula.build import BuildRequest, build
from alula.core.progress import Silent

# Builds and servers of their own: some seconds where nothing else runs, and this machine may be busy.
pytestmark = pytest.mark.timeout(400)

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m.role }}:{{ m.content }}\n{% endfor %}A:"
SPECIAL = {"eos_token_id": [1, 2], "bos_token_id": 0}
PROMPTS = (
    "hello there.",
    "what is it",
    "a",
    "zebras are not horses. they are.",
    "b c",
    "once",
    "x y z",
    "to be",
)
LENGTHS = (24, 3, 40, 17, 9, 31, 12, 5)


@contextlib.contextmanager
def serving(*words: str | Path) -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, "-m", "alula", "serve", *map(str, words), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.search(r"serving on (\S+)", said)
        assert found, said + process.stderr.read()
        with httpx.Client(base_url=found[1], timeout=120) as client:
            yield Running(process=process, url=found[1], client=client)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def bundle(model: Path, to: Path, target: str, **more: Any) -> Path:
    request = BuildRequest(model=str(model), to=to, target=target, precision="fp32", use_cache=False, **more)
    build(request, Silent())
    return to


class Known:
    """What transformers makes of a checkpoint."""

    def __init__(self, folder: Path, model: Any) -> None:
        self.model = model
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))

    def chat(self, prompt: str) -> list[int]:
        ids: list[int] = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        return ids

    def written(self, ids: Sequence[int], most: int) -> str:
        encodes = self.model.config.is_encoder_decoder
        ends = self.model.config.eos_token_id if encodes else SPECIAL["eos_token_id"]
        row = torch.tensor([list(ids)])
        given = {"attention_mask": torch.ones_like(row), "eos_token_id": ends, "pad_token_id": 0}
        with torch.no_grad():
            made = self.model.generate(row, max_new_tokens=most, do_sample=False, **given)[0].tolist()
        tokens = made[1:] if encodes else made[len(ids) :]
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Known]:
    root = tmp_path_factory.mktemp("decoder")
    folder = letters(root / "llama", TEMPLATE, SPECIAL, size=61)
    reference = tiny_decoders.checkpoint(folder, "llama", max_position_embeddings=128)
    letters(folder, TEMPLATE, SPECIAL, size=61)
    return bundle(folder, root / "bundle", "openvino", name="llama"), Known(folder, reference)


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Known]:
    root = tmp_path_factory.mktemp("translator")
    # A head of its own: a small model whose head is its table says its first token for ever.
    folder = tiny_t5.checkpoint(
        root / "t5",
        tied=False,
        num_decoder_layers=2,
        eos_token_id=1,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    letters(folder, size=tiny_t5.VOCAB, around="$A </s>")
    return bundle(folder, root / "bundle", "onnxruntime", name="t5"), Known(folder, tiny_t5.reference(folder))


@pytest.fixture(scope="module")
def server(decoder: tuple[Path, Known], translator: tuple[Path, Known]) -> Iterator[Running]:
    with serving(decoder[0], translator[0]) as running:
        yield running


def test_canaries_go_on_with_a_stored_prompt_of_each_model(server: Running) -> None:
    for model in ("llama", "t5"):
        wait_until(lambda: metric(server, "alula_canaries_total", model=model, finding="well") >= 1)  # noqa: B023
    assert server.get("/health")["canaries"] == {"llama": "well", "t5": "well"}


def streamed(server: Running, path: str, body: dict[str, Any]) -> str:
    with server.client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    choices = [json.loads(line[6:])["choices"][0] for line in lines[:-1]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content", "") for choice in choices)


def together(server: Running, path: str, bodies: Sequence[dict[str, Any]]) -> list[str]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: streamed(server, path, body), bodies))


def test_eight_chats_at_once_are_each_answered_as_transformers_answers_them(
    server: Running, decoder: tuple[Path, Known]
) -> None:
    known = decoder[1]
    asked = [
        {"messages": [{"role": "user", "content": prompt}], "max_tokens": most}
        for prompt, most in zip(PROMPTS, LENGTHS, strict=True)
    ]
    expected = [
        known.written(known.chat(prompt), most) for prompt, most in zip(PROMPTS, LENGTHS, strict=True)
    ]
    assert len(set(expected)) == len(expected)
    assert together(server, CHAT, asked) == expected
    usage = server.post(CHAT, asked[0]).json()["usage"]
    assert usage["prompt_tokens"] == len(known.chat(PROMPTS[0]))


def test_eight_sources_at_once_are_each_written_about_as_transformers_does(
    server: Running, translator: tuple[Path, Known]
) -> None:
    known = translator[1]
    asked = [
        {"prompt": prompt, "max_tokens": most, "model": "t5"}
        for prompt, most in zip(PROMPTS, LENGTHS, strict=True)
    ]
    expected = [
        known.written(known.tokenizer(prompt)["input_ids"], most)
        for prompt, most in zip(PROMPTS, LENGTHS, strict=True)
    ]
    assert len(set(expected)) > 4
    assert together(server, TEXT, asked) == expected


def test_log_probabilities_are_those_of_the_model(server: Running, decoder: tuple[Path, Known]) -> None:
    known = decoder[1]
    ids = known.tokenizer("once upon")["input_ids"]
    answer = server.post(TEXT, {"prompt": ids, "max_tokens": 1, "logprobs": 5}).json()
    with torch.no_grad():
        expected = torch.log_softmax(known.model(torch.tensor([ids])).logits[0, -1].double(), -1)
    best = expected.topk(5)
    top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    assert list(top.values()) == pytest.approx(best.values.tolist(), abs=1e-4)
    spelled = [known.tokenizer.convert_ids_to_tokens(token) for token in best.indices.tolist()]
    assert list(top) == spelled


def test_a_killed_engine_is_opened_again_and_writes_the_same(
    server: Running, decoder: tuple[Path, Known]
) -> None:
    known = decoder[1]
    body = {"prompt": "once upon", "max_tokens": 20}
    expected = known.written(known.tokenizer("once upon")["input_ids"], 20)
    assert streamed(server, TEXT, body) == expected
    os.kill(server.engine_pid(), signal.SIGKILL)
    wait_until(server.restarted, 60)
    assert streamed(server, TEXT, body) == expected
    assert metric(server, "alula_kv_cache_usage_ratio") == 0


@pytest.mark.timeout(900)
def test_smollm2_is_served_from_its_gguf_file(smollm2_bundle: Path) -> None:
    """Transformers gives the same words for these, greedily and in fp32."""
    with serving(smollm2_bundle, "--unverified", "--kv-cache", "256MiB") as server:
        asked = "What is the capital of France? Answer in one sentence."
        chats = [
            {"messages": [{"role": "user", "content": asked}], "max_tokens": 24},
            {"messages": [{"role": "user", "content": "Name three fruits."}], "max_tokens": 24},
        ]
        first, second = together(server, CHAT, chats)
        assert first == "The capital of France is Paris."
        assert second == streamed(server, CHAT, chats[1])
        usage = server.post(CHAT, {**chats[1], "max_tokens": 1}).json()["usage"]
        assert usage == {"prompt_tokens": 34, "completion_tokens": 1, "total_tokens": 35}
