"""Chats and completions over HTTP, as OpenAI's API has them. The model says again what stands before a "|"."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import parrot
import pytest
from served import Running

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def ok(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def refused(response: httpx.Response, status: int = 400) -> Any:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def user(text: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def events(response: httpx.Response) -> list[Any]:
    """The objects of a stream that has ended as it should."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "content-length" not in response.headers
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines[:-1])
    return [json.loads(line[6:]) for line in lines[:-2]]


def ids(text: str) -> list[int]:
    return [int(token) for token in parrot.tokenizer().encode(text).ids]


def test_a_chat_answers_with_a_message(writing: Running) -> None:
    answer = ok(writing.post(CHAT, user("Grüße 🦜", model="tiny/text-generation")))
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "tiny/text-generation"
    assert answer["system_fingerprint"].startswith("fp_")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Grüße 🦜", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    count = len("Grüße 🦜".encode()) + 1  # one for the bar behind the prompt, one for the end of the answer
    assert answer["usage"] == {
        "prompt_tokens": count,
        "completion_tokens": count,
        "total_tokens": 2 * count,
    }


def test_a_chat_is_streamed_in_deltas_that_make_the_same_message(writing: Running) -> None:
    text = "Grüße 🦜 ok"
    given = events(writing.post(CHAT, user(text, stream=True)))
    assert {(one["object"], one["id"], one["created"]) for one in given} == {
        ("chat.completion.chunk", given[0]["id"], given[0]["created"])
    }
    assert all(set(one) >= {"model", "system_fingerprint"} and "usage" not in one for one in given)
    choices = [one["choices"][0] for one in given]
    assert choices[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [choice["delta"]["content"] for choice in choices[1:-1]] == list(text)
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


def test_usage_comes_last_in_a_stream_that_asks_for_it(writing: Running) -> None:
    given = events(writing.post(CHAT, user("abc", stream=True, stream_options={"include_usage": True})))
    assert all(one["usage"] is None for one in given[:-1])
    assert given[-1]["choices"] == []
    assert given[-1]["usage"] == {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8}


def test_a_conversation_is_rendered_by_the_template_of_the_checkpoint(writing: Running) -> None:
    messages = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
    ]
    answer = ok(writing.post(CHAT, {"messages": messages}))
    assert answer["choices"][0]["message"]["content"] == "ab\nc"


def test_max_tokens_ends_an_answer_by_its_length(writing: Running) -> None:
    for word in ("max_tokens", "max_completion_tokens"):
        answer = ok(writing.post(CHAT, {**user("abcdef"), word: 3}))
        assert answer["choices"][0]["message"]["content"] == "abc"
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_an_answer_across_tokens_and_are_not_sent(writing: Running, stream: bool) -> None:
    body = user("ab<en <end!> cd", stop=["<end!>", "zz"], stream=stream)
    response = writing.post(CHAT, body)
    if stream:
        given = [one["choices"][0] for one in events(response)]
        deltas = [choice["delta"].get("content", "") for choice in given]
        # What may become a stop string is held back until it cannot.
        assert "".join(deltas) == "ab<en "
        assert "<en " in deltas
        assert given[-1]["finish_reason"] == "stop"
    else:
        choice = ok(response)["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("ab<en ", "stop")


def test_several_answers_are_told_apart_by_their_index(writing: Running) -> None:
    body = {"prompt": "abc|", "n": 3, "temperature": 2, "seed": 7}
    answer = ok(writing.post(TEXT, body))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(set(texts)) > 1  # each from a seed of its own
    assert answer["usage"]["prompt_tokens"] == 4
    assert [choice["text"] for choice in ok(writing.post(TEXT, body))["choices"]] == texts
    streamed = ["", "", ""]
    for one in events(writing.post(TEXT, {**body, "stream": True})):
        streamed[one["choices"][0]["index"]] += one["choices"][0]["text"]
    assert streamed == texts


def test_a_seed_gives_the_same_answer_again_and_others_another(writing: Running) -> None:
    def texts(seed: int) -> str:
        body = {"prompt": "abcdefgh|", "temperature": 2, "seed": seed, "max_tokens": 8}
        return str(ok(writing.post(TEXT, body))["choices"][0]["text"])

    assert texts(1) == texts(1)
    assert len({texts(seed) for seed in range(6)}) > 1


def test_logprobs_of_a_chat_name_tokens_with_their_bytes(writing: Running) -> None:
    answer = ok(writing.post(CHAT, user("hé", logprobs=True, top_logprobs=2)))
    content = answer["choices"][0]["logprobs"]["content"]
    assert [one["token"] for one in content] == ["h", "\ufffd", "\ufffd"]  # the end is no part of the answer
    assert [one["bytes"] for one in content] == [[104], [0xC3], [0xA9]]
    for one in content:
        assert len(one["top_logprobs"]) == 2
        assert one["top_logprobs"][0]["logprob"] == one["logprob"] == pytest.approx(-0.0997, abs=1e-3)
        assert one["top_logprobs"][1]["logprob"] == pytest.approx(-3.0997, abs=1e-3)
    given = events(writing.post(CHAT, user("hé", logprobs=True, top_logprobs=2, stream=True)))
    sure = [one["choices"][0]["logprobs"] for one in given]
    assert [one for some in sure if some for one in some["content"]] == content
    none = ok(writing.post(CHAT, user("ab", logprobs=True)))["choices"][0]["logprobs"]["content"]
    assert [one["top_logprobs"] for one in none] == [[], []]


def test_logprobs_of_a_completion_are_lists_with_offsets(writing: Running) -> None:
    choice = ok(writing.post(TEXT, {"prompt": "abc|", "logprobs": 2}))["choices"][0]
    sure = choice["logprobs"]
    assert sure["tokens"] == ["a", "b", "c"]
    assert sure["text_offset"] == [0, 1, 2]
    assert sure["token_logprobs"] == pytest.approx([-0.0997] * 3, abs=1e-3)
    assert [len(top) for top in sure["top_logprobs"]] == [2, 2, 2]
    assert sure["top_logprobs"][1]["b"] == sure["token_logprobs"][1]
    given = [
        one["choices"][0]
        for one in events(writing.post(TEXT, {"prompt": "abc|", "logprobs": 2, "stream": True}))
    ]
    for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [one for choice in given for one in choice["logprobs"][key]] == sure[key]


def test_the_log_probability_of_a_token_comes_from_logits_that_no_bias_touched(writing: Running) -> None:
    bias = {str(ids("z")[0]): 100}
    choice = ok(writing.post(TEXT, {"prompt": "abc|", "logprobs": 1, "logit_bias": bias, "max_tokens": 1}))
    assert choice["choices"][0]["text"] == "z"
    assert choice["choices"][0]["logprobs"]["token_logprobs"][0] < -70


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab|", ["ab"]),
        (["ab|", "c|"], ["ab", "c"]),
        (ids("ab|"), ["ab"]),
        ([ids("ab|"), ids("c|")], ["ab", "c"]),
    ],
)
def test_a_completion_takes_texts_and_tokens(writing: Running, prompt: Any, texts: Sequence[str]) -> None:
    answer = ok(writing.post(TEXT, {"prompt": prompt}))
    assert answer["object"] == "text_completion"
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert answer["usage"]["prompt_tokens"] == sum(map(len, texts)) + len(texts)
    echoed = ok(writing.post(TEXT, {"prompt": prompt, "echo": True}))
    assert [choice["text"] for choice in echoed["choices"]] == [f"{text}|{text}" for text in texts]
    streamed = [""] * len(texts)
    for one in events(writing.post(TEXT, {"prompt": prompt, "echo": True, "stream": True})):
        streamed[one["choices"][0]["index"]] += one["choices"][0]["text"]
    assert streamed == [f"{text}|{text}" for text in texts]


def test_n_answers_to_each_of_several_prompts_stand_side_by_side(writing: Running) -> None:
    answer = ok(writing.post(TEXT, {"prompt": ["ab|", "c|"], "n": 2}))
    assert [choice["text"] for choice in answer["choices"]] == ["ab", "ab", "c", "c"]
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == 10


def test_an_encoder_decoder_reads_the_prompt_as_its_source(writing: Running) -> None:
    answer = ok(writing.post(TEXT, {"prompt": "abc|", "model": "tiny/text2text-generation"}))
    assert answer["choices"][0]["text"] == "abc"
    assert answer["usage"]["prompt_tokens"] == 4
    error = refused(writing.post(CHAT, user("abc", model="tiny/text2text-generation")))
    assert "does text2text-generation, not text-generation" in error["message"]


def test_penalties_reach_the_choice_of_tokens(writing: Running) -> None:
    # The parrot's best logit is 0, which no penalty touches; presence moves it below the next.
    body = {"prompt": "aaaa|", "presence_penalty": 2, "frequency_penalty": 2, "max_tokens": 3}
    assert ok(writing.post(TEXT, body))["choices"][0]["text"][0] == "a"
    assert ok(writing.post(TEXT, body))["choices"][0]["text"] != "aaa"
    same = {"prompt": "aaaa|", "repetition_penalty": 3, "max_tokens": 3}
    assert ok(writing.post(TEXT, same))["choices"][0]["text"] == "aaa"


UNSUPPORTED = [
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tool_choice", "auto"),
    ("functions", [{"name": "f"}]),
    ("response_format", {"type": "json_schema", "json_schema": {}}),
    ("response_format", {"type": "json_object"}),
    ("modalities", ["text", "audio"]),
    ("audio", {"voice": "alloy"}),
    ("prediction", {"type": "content", "content": "x"}),
    ("reasoning_effort", "low"),
    ("store", True),
]


@pytest.mark.parametrize(("name", "value"), UNSUPPORTED)
def test_what_is_not_supported_is_refused_by_name(writing: Running, name: str, value: Any) -> None:
    error = refused(writing.post(CHAT, {**user("a"), name: value}))
    assert error == {
        "message": f"{name} is not supported",
        "type": "invalid_request_error",
        "param": name,
        "code": "unsupported_parameter",
    }


def test_what_asks_for_nothing_is_let_pass(writing: Running) -> None:
    body = {
        **user("ab"),
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "store": False,
        "service_tier": "auto",
        "user": "someone",
        "metadata": {"a": "b"},
        "audio": None,
        "parallel_tool_calls": True,
    }
    assert ok(writing.post(CHAT, body))["choices"][0]["message"]["content"] == "ab"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "messages is missing"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "bird", "content": "a"}]}, "messages[0].role is 'bird'"),
        (user([{"type": "image_url", "image_url": {"url": "data:,"}}]), "content[0].type is 'image_url'"),
        (user([{"type": "input_audio", "input_audio": {}}]), "content[0].type is 'input_audio'"),
        (user("a", n=0), "n is 0; expected 1 to 128"),
        (user("a", n=129), "n is 129; expected 1 to 128"),
        (user("a", temperature=3), "temperature is 3; expected 0 to 2"),
        (user("a", temperature="hot"), "temperature is str; expected a number"),
        (user("a", max_tokens=0), "max_tokens is 0; expected at least 1"),
        (user("a", max_tokens=4000), "max_tokens is 4000 behind 2 tokens; expected at most 510"),
        (user("a" * 600), "the prompt has 601 tokens; tiny/text-generation takes 512"),
        (user("a", stop=[""]), "stop[0] is empty"),
        (user("a", stop=["a"] * 5), "stop has 5 strings; expected at most 4"),
        (user("a", stop="x" * 1001), "a stop string has 1001 characters; expected at most 1000"),
        (user("a", logit_bias={"99999": 1}), "logit_bias names token 99999; the model knows 0..257"),
        (user("a", top_logprobs=2), "top_logprobs is 2 without logprobs"),
        (user("a", logprobs=True, top_logprobs=21), "top_logprobs is 21; expected 0 to 20"),
        (user("a", logprobs=3), "logprobs is a whole number, expected a boolean"),
        (user("a", stream_options={"include_usage": True}), "stream_options is given without stream"),
        (user("a", stream=True, stream_options={"x": 1}), "unknown field stream_options.x"),
        (user("a", tempreature=1), "unknown field tempreature"),
        (user("\ud800"), "lone surrogate U+D800"),
    ],
)
def test_a_chat_that_cannot_be_answered_is_refused_by_name(
    writing: Running, body: dict[str, Any], said: str
) -> None:
    response = writing.client.post(CHAT, content=json.dumps(body))
    assert said in refused(response)["message"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "prompt is missing"),
        ({"prompt": []}, "prompt is an empty list"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": [[]]}, "the prompt is empty"),
        ({"prompt": [258]}, "token id 258; the model knows 0..257"),
        ({"prompt": "a|", "suffix": "b"}, "suffix is not supported"),
        ({"prompt": "a|", "best_of": 3}, "best_of is 3; expected as many as n, 1"),
        ({"prompt": "a|", "logprobs": True}, "logprobs is a boolean, expected a whole number"),
        ({"prompt": "a|", "logprobs": 1, "echo": True}, "logprobs is not there for the tokens of the prompt"),
        ({"prompt": "a|", "messages": []}, "unknown field messages"),
    ],
)
def test_a_completion_that_cannot_be_answered_is_refused_by_name(
    writing: Running, body: dict[str, Any], said: str
) -> None:
    assert said in refused(writing.post(TEXT, body))["message"]


def test_more_answers_than_one_request_may_have_are_too_many(writing: Running) -> None:
    error = refused(writing.post(TEXT, {"prompt": ["a|"] * 9, "n": 2}), 413)
    assert error["message"] == "18 answers in one request; the limit is 16"


def test_models_are_told_apart(writing: Running) -> None:
    error = refused(writing.post(CHAT, user("a", model="tiny/plain")))
    assert "tiny/plain has no chat template, so it takes prompts and no messages" in error["message"]
    assert ok(writing.post(TEXT, {"prompt": "a|", "model": "plain"}))["model"] == "tiny/plain"
    assert refused(writing.post(CHAT, user("a", model="gpt-9")), 404)["code"] == "model_not_found"
    error = refused(writing.post(CHAT, user("a", model="tiny/embeddings")))
    assert "does embeddings, not text-generation" in error["message"]
    error = refused(writing.post("/v1/embeddings", {"input": "a", "model": "tiny/plain"}))
    assert "does text-generation, not embeddings" in error["message"]


def test_an_error_of_one_answer_is_an_answer(writing: Running) -> None:
    response = writing.post(TEXT, {"prompt": "NANNY|"})
    error = refused(response, 500)
    assert "the model answered NaN" in error["message"]
    assert error["code"] == "engine_error"
    streamed = writing.post(TEXT, {"prompt": "NANNY|", "stream": True})
    assert streamed.status_code == 200
    *before, last, rest = streamed.text.split("\n\n")
    assert rest == ""
    assert [json.loads(line[6:])["choices"][0]["text"] for line in before] == ["N", "A"]
    assert json.loads(last[6:])["error"] == error


def test_information_says_what_a_model_that_writes_takes(writing: Running) -> None:
    models = {one["id"]: one for one in writing.get("/info")["models"]}
    assert models["tiny/text-generation"]["max_total_tokens"] == 512
    assert models["tiny/text-generation"]["chat"] is True
    assert models["tiny/plain"]["chat"] is False
    assert models["tiny/text2text-generation"]["chat"] is False
    assert models["tiny/embeddings"]["max_batch_rows"] == 4


def test_everything_the_server_answers_is_described(writing: Running) -> None:
    described = writing.get("/openapi.json")["paths"]
    for path, example in ((CHAT, user("a")), (TEXT, {"prompt": "a|"})):
        schema = described[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        every = {**example, **dict.fromkeys(schema["properties"])}
        ok(writing.post(path, {**every, **example}))
        assert set(schema["required"]) == set(example)
