from __future__ import annotations

import base64
import gzip
import json
import re
import time
import zlib
from typing import Any

import httpx
import numpy as np
import pytest
from served import Running, metric

from alula.serve import ocr_routes


def ok(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def test_openai_embeddings_come_in_order_with_usage(server: Running) -> None:
    answer = ok(server.post("/v1/embeddings", {"input": ["a", "a b hello"], "model": "tiny/embeddings"}))
    assert answer["object"] == "list"
    assert answer["model"] == "tiny/embeddings"
    assert answer["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert [one["index"] for one in answer["data"]] == [0, 1]
    assert answer["data"][0]["embedding"] == [9.0, 3.0, 1.0, -3.0]
    assert answer["data"][1]["embedding"] == [20.0, 5.0, 1.0, -5.0]


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("a", 1),
        ([2, 4, 3], 1),
        ([[2, 4, 3], [2, 3]], 2),
        (["", "\0", "🦜"], 3),
    ],
)
def test_openai_input_takes_every_shape(server: Running, given: Any, count: int) -> None:
    assert len(ok(server.post("/v1/embeddings", {"input": given}))["data"]) == count


def test_token_ids_give_what_their_text_gives(server: Running) -> None:
    by_text = ok(server.post("/v1/embeddings", {"input": "a"}))["data"]
    assert ok(server.post("/v1/embeddings", {"input": [2, 4, 3]}))["data"] == by_text


def test_base64_holds_the_same_floats(server: Running) -> None:
    (one,) = ok(server.post("/v1/embeddings", {"input": "a", "encoding_format": "base64"}))["data"]
    assert np.frombuffer(base64.b64decode(one["embedding"]), "<f4").tolist() == [9.0, 3.0, 1.0, -3.0]


def test_dimensions_cut_and_normalise_again(server: Running) -> None:
    (one,) = ok(server.post("/v1/embeddings", {"input": "a", "dimensions": 2}))["data"]
    assert one["embedding"] == pytest.approx(np.array([9.0, 3.0]) / np.sqrt(90.0))


def test_embed_answers_a_list_of_vectors(server: Running) -> None:
    plain = ok(server.post("/embed", {"inputs": ["a", "b"], "normalize": False}))
    assert plain == [[9.0, 3.0, 1.0, -3.0], [10.0, 3.0, 1.0, -3.0]]
    (normal,) = ok(server.post("/embed", {"inputs": "a"}))
    assert np.linalg.norm(normal) == pytest.approx(1.0)


def test_tokens_come_with_their_places_in_code_points(server: Running) -> None:
    text = "🦜 rome " + "a " * 60
    (found,) = ok(server.post("/tokenize", {"inputs": text, "model": "tiny/embeddings"}))
    assert found[0] == {"id": 2, "text": "[CLS]", "special": True, "start": None, "stop": None}
    assert found[2] == {"id": 8, "text": "rome", "special": False, "start": 2, "stop": 6}
    assert len(found) == 64, "none is cut off"
    bare = ok(server.post("/tokenize", {"inputs": [text, "a b"], "add_special_tokens": False}))
    assert bare[0] == found[1:-1]
    assert [token["id"] for token in bare[1]] == [4, 5]
    assert server.post("/tokenize", {"inputs": ["a"] * 9}).status_code == 413
    assert server.post("/tokenize", {"inputs": []}).status_code == 400


def test_a_batch_of_one_equals_the_same_text_in_a_batch_of_many(server: Running) -> None:
    texts = ["a", "a b a b", "hello world a", "", "b"]
    together = ok(server.post("/embed", {"inputs": texts}))
    assert together == [ok(server.post("/embed", {"inputs": text}))[0] for text in texts]


def test_texts_are_cut_to_what_the_engine_was_built_for(server: Running) -> None:
    text = "a " * 100
    (cut,) = ok(server.post("/embed", {"inputs": text, "normalize": False}))
    assert cut[1] == 48
    refused = server.post("/embed", {"inputs": text, "truncate": False})
    assert refused.status_code == 400
    assert refused.json() == {
        "error": "text has 102 tokens; the model takes 48",
        "error_type": "validation",
    }


@pytest.mark.parametrize("model", ["tiny/sequence-classification", "sequence-classification"])
def test_predict_gives_classes_best_first(server: Running, model: str) -> None:
    found = ok(server.post("/predict", {"inputs": "a b", "model": model}))
    assert [one["label"] for one in found] == ["sad", "glad", "mad"]
    assert sum(one["score"] for one in found) == pytest.approx(1.0)
    batch = ok(server.post("/predict", {"inputs": [["a b"], ["a", "b"]], "model": model}))
    assert batch[0] == found
    assert len(batch) == 2
    pair = ok(server.post("/predict", {"inputs": ["a", "b"], "model": model}))
    assert pair == batch[1]


def test_predict_gives_entities_in_code_points(server: Running) -> None:
    text = "🦜🦜 lives rome 👩‍👩‍👧 a"
    found = ok(server.post("/predict", {"inputs": text, "model": "tiny/token-classification"}))
    assert [(one["entity_group"], one["word"]) for one in found] == [("CITY", "rome")]
    assert text[found[0]["start"] : found[0]["end"]] == "rome"
    both = ok(server.post("/predict", {"inputs": [text, "a"], "model": "tiny/token-classification"}))
    assert both == [found, []]
    tokens = ok(
        server.post(
            "/predict",
            {
                "inputs": "rome a",
                "model": "tiny/token-classification",
                "parameters": {"aggregation_strategy": "none"},
            },
        )
    )
    assert [(one["entity"], one["index"]) for one in tokens] == [("B-CITY", 1), ("O", 2)]


@pytest.mark.parametrize("inside", [True, False])
def test_predict_answers_questions(server: Running, inside: bool) -> None:
    asked = {"question": "rome a", "context": "🦜 lives rome b"}
    body = {"inputs": asked} if inside else asked
    found = ok(server.post("/predict", {**body, "model": "tiny/question-answering"}))
    assert found["answer"] == "rome" == asked["context"][found["start"] : found["end"]]
    several = ok(
        server.post("/predict", {**body, "model": "tiny/question-answering", "parameters": {"top_k": 2}})
    )
    assert len(several) == 2
    assert several[0] == found


def test_rerank_puts_the_best_text_first(server: Running) -> None:
    body = {"query": "a", "texts": ["a", "rome rome", "b b"]}
    found = ok(server.post("/rerank", body))
    assert [one["index"] for one in found] == [1, 2, 0]
    assert all(0 < one["score"] < 1 and "text" not in one for one in found)
    raw = ok(server.post("/rerank", {**body, "raw_scores": True, "return_text": True}))
    assert raw[0]["text"] == "rome rome"
    assert raw[-1]["score"] == pytest.approx(-0.84)


def test_what_is_served_is_told(server: Running) -> None:
    ids = [one["id"] for one in server.get("/v1/models")["data"]]
    assert "tiny/embeddings" in ids
    assert len(ids) == 6
    info = server.get("/info")
    assert info["model_id"] == ids[0]
    assert info["model_type"] == {"embedding": {"pooling": ""}}
    assert (info["auto_truncate"], info["max_client_batch_size"]) == (True, 8)
    assert info["max_input_length"] == 48
    assert (info["model_dtype"], info["max_batch_requests"], info["tokenization_workers"]) == (
        "float32",
        4,
        1,
    )
    tei = {
        "served_model_name",
        "model_sha",
        "max_concurrent_requests",
        "max_batch_tokens",
        "sha",
        "docker_label",
    }
    assert set(info) > tei
    assert info["models"][0]["verified"] is True


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/livez", "/readyz"])
def test_a_healthy_server_says_so(server: Running, path: str) -> None:
    health = server.get(path)
    assert (health["status"], health["live"], health["ready"]) == ("ready", True, True)


def test_the_documentation_needs_nothing_from_elsewhere(server: Running) -> None:
    assert server.client.get("/docs").headers["content-type"].startswith("text/html")
    described = server.get("/openapi.json")
    assert described["openapi"].startswith("3.")
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if method == "get":
                assert server.client.get(path.replace("{model}", "tiny/embeddings")).status_code == 200
            elif path not in ocr_routes.PATHS:  # which no model here does
                example = operation["requestBody"]["content"]["application/json"]["example"]
                assert server.post(path.replace("{model}", "tiny/embeddings"), example).status_code == 200


def taken(server: Running, path: str, body: dict[str, Any], inside: str = "") -> set[str]:
    """The fields that the parser of a body says it takes."""
    unknown = {**body, inside: {**body.get(inside, {}), "zzz": 1}} if inside else {**body, "zzz": 1}
    response = server.post(path, unknown)
    assert response.status_code == 400
    error = response.json()["error"]
    text = error["message"] if isinstance(error, dict) else error
    start = f"unknown field {inside + '.' if inside else ''}zzz; this endpoint takes "
    assert text.startswith(start)
    return set(text.removeprefix(start).split(", "))


def test_the_document_lists_every_field_the_parsers_take_and_no_other(server: Running) -> None:
    answer = {"question": "a", "context": "b", "model": "tiny/question-answering"}
    entity = {"inputs": "a", "model": "tiny/token-classification"}
    chat = {"messages": [{"role": "user", "content": "a"}]}
    found = {
        "/v1/chat/completions": taken(server, "/v1/chat/completions", chat),
        "/v1/completions": taken(server, "/v1/completions", {"prompt": "a|"}),
        "/v1/embeddings": taken(server, "/v1/embeddings", {"input": "a"}),
        "/embed": taken(server, "/embed", {"inputs": "a"}),
        "/tokenize": taken(server, "/tokenize", {"inputs": "a"}),
        "/rerank": taken(server, "/rerank", {"query": "a", "texts": ["b"]}),
        "/predict": taken(server, "/predict", {"inputs": "a", "model": "tiny/sequence-classification"})
        | taken(server, "/predict", entity)
        | taken(server, "/predict", answer),
        "/v2/models/{model}/infer": taken(server, "/v2/models/tiny/embeddings/infer", {"inputs": []}),
    }
    options = taken(server, "/predict", entity, "parameters") | taken(
        server, "/predict", answer, "parameters"
    )
    paths = server.get("/openapi.json")["paths"]
    schemas = {
        path: methods["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        for path, methods in paths.items()
        if "post" in methods and path not in ocr_routes.PATHS
    }
    assert {path: set(fields) for path, fields in schemas.items()} == found
    assert set(schemas["/predict"]["parameters"]["properties"]) == options
    for methods in paths.values():
        for operation in methods.values():
            assert "405" in operation["responses"]


@pytest.mark.parametrize("field", ["top_k", "max_answer_len"])
def test_a_count_of_answers_may_be_large_but_not_any_number(server: Running, field: str) -> None:
    body = {"question": "rome a", "context": "lives rome b", "model": "tiny/question-answering"}
    assert server.post("/predict", {**body, field: (1 << 31) - 1}).status_code == 200
    refused = server.post("/predict", {**body, field: 1 << 63})
    assert (refused.status_code, refused.json()["error"]) == (
        400,
        f"{field} is a number of 19 digits, which is too large",
    )


@pytest.mark.parametrize("name", ["tiny/embeddings", "tiny%2Fembeddings", "embeddings"])
def test_one_model_is_told_by_its_name(server: Running, name: str) -> None:
    told = server.client.get(f"/v1/models/{name}")
    answer = told.json()
    assert abs(answer.pop("created") - time.time()) < 3_600  # the bundle was made for this run
    expected = {"id": "tiny/embeddings", "object": "model", "owned_by": "alula", "max_model_len": 48}
    assert answer == expected


def test_a_model_that_is_not_served_is_missing_in_the_words_of_openai(server: Running) -> None:
    response = server.client.get("/v1/models/gpt-4")
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (404, "model_not_found")
    assert error["message"].startswith("model 'gpt-4' is not served; served: tiny/embeddings")
    text = server.client.get("/metrics").text
    assert "gpt-4" not in text
    assert 'route="/v1/models/{model:path}"' in text


def test_metrics_count_requests_batches_and_padding(server: Running) -> None:
    ok(server.post("/embed", {"inputs": ["a", "a b hello world"]}))
    text = server.client.get("/metrics").text
    for line in (
        'alula_requests_total{route="/embed",status="200"}',
        'alula_request_duration_seconds_bucket{le="0.001",model="tiny/embeddings",route="/embed"}',
        'alula_queue_duration_seconds_count{model="tiny/embeddings"}',
        'alula_batch_size_sum{model="tiny/embeddings"}',
        'alula_padding_ratio_sum{model="tiny/embeddings"}',
        'alula_tokens_total{model="tiny/embeddings"}',
        'alula_engine_up{device="",engine="0"} 1.0',
        "# TYPE alula_engine_restarts_total counter",
        "alula_engine_restarts_total 0.0",
        "process_resident_memory_bytes",
    ):
        assert line in text
    assert "_created" not in text
    server.client.get("/secret/path/of/a/stranger")
    assert "stranger" not in server.client.get("/metrics").text


def test_a_request_id_is_echoed_or_made(server: Running) -> None:
    given = server.post("/embed", {"inputs": "a"}, **{"x-request-id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    made = server.post("/embed", {"inputs": "a"}, **{"x-request-id": 'a" b'})
    assert re.fullmatch("[0-9a-f]{32}", made.headers["x-request-id"])
    assert re.fullmatch("[0-9a-f]{32}", server.client.get("/nowhere").headers["x-request-id"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not JSON: empty"),
        (b"\0", "the body is not JSON: "),
        (b"\0" * 100, "the body is not JSON: "),
        (b'{"inputs": "a', "the body is not JSON: "),
        (b'{"inputs": "\xff"}', "the body is not UTF-8: byte 12 is 0xff"),
        ('{"inputs": "a"}'.encode("utf-16"), "the body is not UTF-8: byte 0 is 0xff"),
        (
            b'{"inputs": "a", "inputs": "b"}',
            "the body has 'inputs' twice in one object; expected each name once",
        ),
        (b'{"inputs": NaN}', "the body is not JSON: NaN is no JSON number"),
        (b"[" * 100_000, "the body is not JSON that can be read: nested too deeply"),
        (b'["a"]', "the body is a list, expected an object"),
        (b"null", "the body is null, expected an object"),
        (b"{}", "inputs is missing"),
        (b'{"inputs": null}', "inputs is missing"),
        (b'{"inputs": 7}', "inputs is a whole number, expected a string or a list of strings"),
        (b'{"inputs": ["a", 7]}', "inputs[1] is a whole number, expected a string"),
        (b'{"inputs": []}', "the list of inputs is empty; expected at least one"),
        (b'{"inputs": "a", "truncate": "yes"}', "truncate is a string, expected a boolean"),
        (b'{"inputs": "a", "dimensions": true}', "dimensions is a boolean, expected a whole number"),
        (b'{"inputs": "a", "dimensions": 3.5}', "dimensions is a float, expected a whole number"),
        (
            b'{"inputs": "a", "dimensions": ' + b"9" * 5000 + b"}",
            "the body is not JSON that can be read: a number has too many digits",
        ),
        (
            b'{"inputs": "a", "dimensions": ' + b"9" * 400 + b"}",
            "dimensions is a number of 400 digits, which is too large",
        ),
        (b'{"inputs": "a", "dimensions": 5}', "dimensions is 5; the model has 1..4"),
        (b'{"inputs": "a", "prompt": "q"}', "unknown field prompt; this endpoint takes dimensions, inputs"),
        (
            b'{"inputs": "a", "truncation_direction": "left"}',
            "truncation_direction is 'left', expected one of",
        ),
        (rb'{"inputs": "\ud83d"}', "text has the lone surrogate U+D83D at character 0"),
        (rb'{"inputs": "a", "model": "\ude00"}', "model '\\ude00' is not served"),
        (rb'{"inputs": "a", "\ude00": 1}', "unknown field \ude00"),
    ],
)
def test_a_body_that_cannot_be_used_is_refused_with_the_reason(
    server: Running, body: bytes, message: str
) -> None:
    response = server.client.post("/embed", content=body)
    assert response.status_code == (404 if "not served" in message else 400)
    answer = json.loads(response.content)
    assert answer["error_type"] == "validation"
    assert message in answer["error"]
    assert "set_int_max_str_digits" not in answer["error"]


def test_a_number_without_a_fraction_is_a_whole_number(server: Running) -> None:
    assert len(ok(server.post("/embed", {"inputs": "a", "dimensions": 2.0}))[0]) == 2
    ids, same = (ok(server.post("/v1/embeddings", {"input": ids})) for ids in ([2, 4, 3], [2.0, 4, 3.0]))
    assert ids == same


@pytest.mark.parametrize(
    "path",
    [
        "/v1/embeddings",
        "/v1/chat/completions",
        "/v1/completions",
        "/v2/models/tiny/embeddings/infer",
        "/embed",
        "/embed_all",
        "/predict",
        "/rerank",
        "/tokenize",
    ],
)
@pytest.mark.parametrize("body", [b"", b"\0", b"   ", b"\xff\xfe", b'{"inputs": ["a"'])
def test_a_body_of_nothing_is_the_clients_fault_everywhere(server: Running, path: str, body: bytes) -> None:
    """triton-inference-server/server#8773: an empty body, or one zero byte, was an error of the server's own."""
    response = server.client.post(path, content=body)
    assert response.status_code == 400, response.text
    assert "the body is not " in response.text
    assert server.client.get("/health/ready").status_code == 200


def test_numbers_that_are_none_are_counted_as_the_models_failure(server: Running) -> None:
    """vllm-project/vllm#19661: NaN in a vector broke the answer as it was written, and nothing said why."""
    failed = {"route": "/embed", "status": "500"}
    before = metric(server, "alula_requests_total", **failed)
    for answer in (server.post("/embed", {"inputs": "nan"}), server.post("/embed", {"inputs": ["a", "nan"]})):
        assert (answer.status_code, answer.json()["error_type"]) == (500, "backend")
        assert answer.json()["error"] == "the model gave NaN for 'embedding'"
    assert metric(server, "alula_requests_total", **failed) == before + 2
    assert ok(server.post("/embed", {"inputs": "a"}))


@pytest.mark.parametrize(
    ("path", "body"),
    [("/embed", {"inputs": "document"}), ("/v1/embeddings", {"input": "document"})],
)
def test_a_text_that_is_no_list_is_one_text(server: Running, path: str, body: dict[str, Any]) -> None:
    """langchain-ai/langchain-nvidia#8: of a bare text every letter had a vector, eight of `document`."""
    answer = ok(server.post(path, body))
    assert len(answer if path == "/embed" else answer["data"]) == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/embed", {"inputs": ["a"] * 9}, 413, "9 inputs in one request; the limit is 8"),
        ("/embed", {"inputs": "a" * 2_000_000}, 413, "the body is larger than 2000000 bytes"),
        (
            "/embed",
            {"inputs": "a", "model": "none"},
            404,
            "model 'none' is not served; served: tiny/embeddings",
        ),
        (
            "/embed",
            {"inputs": "a", "model": "tiny/reranking"},
            400,
            "model 'tiny/reranking' does reranking, not embeddings",
        ),
        ("/rerank", {"query": "a", "texts": []}, 400, "the list of inputs is empty"),
        ("/rerank", {"query": "a", "texts": "b"}, 400, "texts is a string, expected a list"),
        ("/predict", {"inputs": ["a", "b", "c"]}, 400, "inputs has 3 strings, expected one text or a pair"),
        ("/embed", {"inputs": "wrong"}, 400, "axis 'length' is 9; built for 1..8"),
        ("/embed", {"inputs": "broken"}, 500, "bad kernel"),
        ("/embed", {"inputs": "nan"}, 500, "the model gave NaN for 'embedding'"),
        ("/embed", {"inputs": "bug"}, 500, "KeyError: 'nobody foresaw this'"),
    ],
)
def test_a_refusal_keeps_its_kind(
    server: Running, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    response = server.post(path, body)
    assert response.status_code == status
    assert message in response.json()["error"]
    assert response.json()["error_type"] == ("backend" if status == 500 else "validation")


def test_openai_paths_have_openai_errors(server: Running) -> None:
    response = server.post("/v1/embeddings", {"input": "a", "model": "none"})
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "model_not_found")
    assert server.post("/v1/nothing", {}).json()["error"]["message"] == (
        "no endpoint /v1/nothing; /docs lists them"
    )
    assert (
        server.post("/v1/embeddings", {"input": [2, 99]})
        .json()["error"]["message"]
        .startswith("token id 99; the model knows 0..")
    )


def test_a_body_without_a_length_is_stopped_where_it_is_too_large(server: Running) -> None:
    response = server.client.post("/embed", content=(b" " * 100_000 for _ in range(40)))
    assert response.status_code == 413


def test_a_wrong_method_names_the_right_one(server: Running) -> None:
    response = server.client.get("/embed")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.json()["error"] == "/embed takes POST, not GET"


def test_more_text_than_all_tokens_of_it_may_be_told_is_refused(server: Running) -> None:
    answer = server.post("/tokenize", {"inputs": ["a " * 200_000, "b " * 100_000]})
    assert answer.status_code == 413
    assert "600000 characters in one request; the limit is 500000" in answer.json()["error"]


def test_a_text_of_a_megabyte_is_cut_without_being_read_whole(server: Running) -> None:
    began = time.monotonic()
    answer = server.post("/embed", {"inputs": ["hello " * 300_000]})
    assert time.monotonic() - began < 1
    assert answer.json() == server.post("/embed", {"inputs": "hello " * 100}).json()


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings"])
def test_a_body_may_be_compressed_and_is_bounded_as_others_are(server: Running, path: str) -> None:
    body = json.dumps({"input" if "v1" in path else "inputs": "hello"}).encode()

    def posted(content: bytes, encoding: str) -> httpx.Response:
        return server.client.post(path, content=content, headers={"content-encoding": encoding})

    plain = ok(posted(body, "identity"))
    assert ok(posted(gzip.compress(body), "gzip")) == ok(posted(zlib.compress(body), "DEFLATE")) == plain
    bomb = posted(gzip.compress(b" " * 50_000_000), "gzip")
    assert bomb.status_code == 413
    assert "the body is larger than 2000000 bytes once it is inflated" in bomb.text
    refused = posted(body, "br")
    assert refused.status_code == 415
    assert "content-encoding is 'br'; expected one of: identity, gzip, deflate" in refused.text
