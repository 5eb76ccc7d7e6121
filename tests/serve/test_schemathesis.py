"""What the server says of itself, held to by schemathesis as it comes: every check it has, on a server that runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
from served import Running, make_reader, running

from alula.serve.openapi_served import up_to

SETTINGS = Path(__file__).with_name("schemathesis.toml")
TOOL = os.environ.get("SCHEMATHESIS") or shutil.which("schemathesis")


@pytest.mark.skipif(TOOL is None, reason="schemathesis is not there; make conformance brings it")
@pytest.mark.timeout(300)
def test_whatever_the_description_allows_is_accepted_and_nothing_else(
    bundles: dict[str, Path], writers: dict[str, Path], tmp_path: Path
) -> None:
    assert TOOL is not None
    served = [*bundles.values(), writers["chat"], writers["text2text"]]
    with running(served, env={"SCRIPTED_DEAF": "1"}) as server:
        command = [TOOL, "--config-file", str(SETTINGS), "run", f"{server.url}/openapi.json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
        tested = re.search(r"Tested: (\d+)", done.stdout)
        assert tested
        assert int(tested[1]) == sum(map(len, server.get("/openapi.json")["paths"].values()))
        assert server.client.get("/health/ready").status_code == 200


@pytest.mark.parametrize("most", [0, 1, 7, 9, 10, 11, 19, 20, 99, 100, 101, 109, 110, 345, 999, 1_000, 2_047])
def test_a_pattern_of_numbers_is_of_those_and_no_others(most: int) -> None:
    pattern = re.compile(up_to(most))
    for number in range(3 * most + 120):
        assert bool(pattern.search(str(number))) == (number <= most), number
        assert not pattern.search(f"0{number}")


SCHEMAS = [
    ("/embed", {"inputs": "a", "model": None}, True),
    ("/embed", {"inputs": "a", "model": "embeddings"}, True),
    ("/embed", {"inputs": "a", "model": "tiny/reranking"}, False),
    ("/embed", {"inputs": "a", "dimensions": 4}, True),
    ("/embed", {"inputs": "a", "dimensions": 5}, False),
    ("/embed", {"inputs": ["a"] * 9}, False),
    ("/v1/embeddings", {"input": [9]}, True),
    ("/v1/embeddings", {"input": [[2, 18]]}, False),
    ("/rerank", {"query": "a", "texts": ["b"] * 9}, False),
    ("/predict", {"inputs": [["a"], ["a", "b"]], "raw_scores": True}, True),
    ("/predict", {"inputs": ["a", "b", "c"]}, False),
    ("/predict", {"inputs": "a", "top_k": 1}, False),
    ("/predict", {"inputs": "a", "top_k": None, "parameters": None}, True),
    ("/predict", {"inputs": "a", "model": "token-classification", "aggregation_strategy": "none"}, True),
    ("/predict", {"inputs": "a", "model": "token-classification", "top_k": 2}, False),
    (
        "/predict",
        {
            "inputs": "a",
            "model": "token-classification",
            "parameters": {"aggregation_strategy": "none"},
            "aggregation_strategy": "none",
        },
        False,
    ),
    ("/predict", {"question": "a", "context": "b", "model": "question-answering", "top_k": 2}, True),
    ("/predict", {"inputs": {"question": "a", "context": "b"}, "model": "question-answering"}, True),
    ("/predict", {"question": "a", "model": "question-answering"}, False),
    ("/v1/completions", {"prompt": "a|", "max_tokens": 1, "logit_bias": {"3": 1}}, True),
    ("/v1/completions", {"prompt": "a|", "logit_bias": {"99999": 1}}, False),
    ("/v1/completions", {"prompt": "a|", "stop_token_ids": [99_999]}, False),
    ("/v1/completions", {"prompt": "", "max_tokens": 1}, False),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}, True),
    ("/v1/chat/completions", {"messages": [{"role": "user"}]}, False),
]


@pytest.mark.parametrize(("path", "body", "valid"), SCHEMAS)
def test_the_description_and_the_server_agree(
    server: Running, path: str, body: dict[str, object], valid: bool
) -> None:
    described = server.get("/openapi.json")["paths"][path]["post"]["requestBody"]["content"]
    found = jsonschema.Draft202012Validator(described["application/json"]["schema"]).is_valid(body)
    answer = server.post(path, body)
    assert (found, answer.status_code == 200) == (valid, valid), answer.text


def test_what_nobody_here_does_is_not_described(server: Running, tmp_path: Path) -> None:
    paths = server.get("/openapi.json")["paths"]
    assert "/ocr" not in paths
    assert set(paths["/predict"]["post"]["requestBody"]["content"]) == {"application/json"}
    named = paths["/v1/models/{model}"]["get"]["parameters"][0]["schema"]["enum"]
    assert named == [one["id"] for one in server.get("/v1/models")["data"]]
    with running([make_reader(tmp_path / "reader")]) as reading:
        content = reading.get("/openapi.json")["paths"]["/predict"]["post"]["requestBody"]["content"]
        assert "image/*" in content
        gone = {"/embed", "/embed_all", "/tokenize", "/rerank", "/v1/embeddings", "/v1/completions", "/ocr"}
        assert not gone & set(reading.get("/openapi.json")["paths"])
