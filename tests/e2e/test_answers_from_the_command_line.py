"""`alula build` and `alula run --prompt` on models that write, beside transformers: the same words, from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_decoders
import tiny_t5
import torch
import transformers
from letters import letters

from alula.bundles import Bundle
from alula.generate import Sampling
from alula.prompting import Prompts

TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m.role }}:{{ m.content }}\n{% endfor %}A:"
CHATS = ("hello there.", "what is it", "a", "zebras are not horses. they are.")


def alula(*words: str | Path, stdin: str = "", code: int = 0) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "alula", *map(str, words)],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        check=False,
    )
    assert run.returncode == code, run.stderr
    return run.stdout if code == 0 else run.stderr


def built(model: Path, to: Path, *more: str) -> Path:
    alula("build", model, "-o", to, "--target", "onnxruntime", "--precision", "fp32", *more)
    return to


def rows(bundle: Path, prompts: Sequence[str], *more: str) -> list[dict[str, Any]]:
    given = [word for prompt in prompts for word in ("--prompt", prompt)]
    found: list[dict[str, Any]] = json.loads(alula("run", bundle, *given, *more, "--json"))["rows"]
    return found


def written(model: Any, ids: Sequence[int], most: int, **more: Any) -> list[int]:
    row = torch.tensor([ids])
    with torch.no_grad():
        # Left to itself it takes a first token that pads elsewhere for padding.
        made = model.generate(
            row, attention_mask=torch.ones_like(row), max_new_tokens=most, do_sample=False, **more
        )
    tokens: list[int] = made[0].tolist()
    return tokens


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """A small LLaMA that reads letters, its bundle, and what transformers makes of it."""
    root = tmp_path_factory.mktemp("decoder")
    folder = letters(root / "model", TEMPLATE, {"eos_token_id": [1, 2], "bos_token_id": 0}, size=61)
    reference = tiny_decoders.checkpoint(folder, "llama", max_position_embeddings=128)
    letters(folder, TEMPLATE, {"eos_token_id": [1, 2], "bos_token_id": 0}, size=61)
    return folder, built(folder, root / "bundle"), reference


def test_a_chat_is_answered_as_transformers_answers_it_alone_and_in_company(
    decoder: tuple[Path, Path, Any],
) -> None:
    folder, bundle, reference = decoder
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    found = rows(bundle, CHATS, "--max-tokens", "24")
    for prompt, row in zip(CHATS, found, strict=True):
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        tokens = written(reference, ids, 24, eos_token_id=[1, 2], pad_token_id=0)[len(ids) :]
        assert row["text"] == tokenizer.decode(tokens, skip_special_tokens=True)
        assert (row["prompt_tokens"], row["tokens"]) == (len(ids), len(tokens))
        assert row["finish_reason"] == ("stop" if tokens[-1] in (1, 2) else "length")
    (alone,) = rows(bundle, CHATS[1:2], "--max-tokens", "24")
    assert alone["text"] == found[1]["text"]


def test_a_prompt_is_gone_on_with_and_comes_from_a_pipe_too(decoder: tuple[Path, Path, Any]) -> None:
    folder, bundle, reference = decoder
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    ids = tokenizer("once upon")["input_ids"]
    tokens = written(reference, ids, 12, eos_token_id=[1, 2], pad_token_id=0)[len(ids) :]
    expected = tokenizer.decode(tokens, skip_special_tokens=True)
    asked = ("run", bundle, "--no-chat", "--max-tokens", "12")
    assert alula(*asked, "--prompt", "once upon") == f"{expected}\n"
    assert alula(*asked, stdin="once upon\n") == f"{expected}\n"
    assert alula(*asked, "--prompt", "-", stdin="once upon") == f"{expected}\n"
    stop = expected[3:5]
    assert alula(*asked, "--prompt", "once upon", "--stop", stop) == f"{expected[: expected.index(stop)]}\n"


def test_a_seed_draws_the_same_again(decoder: tuple[Path, Path, Any]) -> None:
    _, bundle, _ = decoder
    drawn = ("--temperature", "1.5", "--seed", "7", "--max-tokens", "24")
    first, again, other = rows(bundle, ["hello"] * 2, *drawn), rows(bundle, ["hello"], *drawn), None
    other = rows(bundle, ["hello"], "--temperature", "1.5", "--seed", "8", "--max-tokens", "24")
    assert first[0]["text"] == first[1]["text"] == again[0]["text"] != other[0]["text"]


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(decoder: tuple[Path, Path, Any]) -> None:
    _, bundle, _ = decoder
    said = alula("run", bundle, "--no-chat", "--prompt", "a" * 200, code=2)
    assert "alula: the prompt has 201 tokens; model takes 128, at least one of them for the answer" in said
    assert "--text" not in said
    assert "takes --prompt TEXT" in alula("run", bundle, "--text", "a", code=2)


def test_a_t5_answers_as_transformers_does(tmp_path: Path) -> None:
    folder = tiny_t5.checkpoint(
        tmp_path / "t5", num_decoder_layers=2, eos_token_id=1, decoder_start_token_id=0, pad_token_id=0
    )
    letters(folder, size=tiny_t5.VOCAB, around="$A </s>")
    bundle = built(folder, tmp_path / "bundle")
    reference = tiny_t5.reference(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    for prompt, row in zip(CHATS, rows(bundle, CHATS, "--max-tokens", "16"), strict=True):
        ids = tokenizer(prompt)["input_ids"]
        assert ids[-1] == 1
        tokens = written(reference, ids, 16)[1:]
        assert row["text"] == tokenizer.decode(tokens, skip_special_tokens=True)
        assert (row["prompt_tokens"], row["tokens"]) == (len(ids), len(tokens))
    assert "has no chat template" in alula("run", bundle, "--prompt", "a", "--chat", code=2)


def test_the_makers_defaults_go_into_the_bundle(decoder: tuple[Path, Path, Any], tmp_path: Path) -> None:
    folder, _, _ = decoder
    said = {"eos_token_id": 1, "do_sample": True, "temperature": 0.6, "top_k": 20, "max_new_tokens": 5}
    (tmp_path / "model").mkdir()
    for path in folder.iterdir():
        (tmp_path / "model" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(said))
    bundle = built(tmp_path / "model", tmp_path / "bundle", "--reference", "own-graph")
    asked = Prompts.open(Bundle.open(bundle)).text("a", {})
    assert asked.sampling == Sampling(temperature=0.6, top_k=20)
    assert (asked.stopping.max_tokens, asked.stopping.end_tokens) == (5, (1,))
    (row,) = rows(bundle, ["a"])
    assert row["tokens"] <= 5


@pytest.mark.timeout(600)
def test_smollm2_answers(smollm2_bundle: Path) -> None:
    """Transformers gives the same words for these, greedily and in fp32."""
    asked = ("What is the capital of France? Answer in one sentence.", "Name three fruits.")
    first, second = rows(smollm2_bundle, asked, "--max-tokens", "24")
    assert first["text"] == "The capital of France is Paris."
    assert (first["finish_reason"], first["stopped_by"]) == ("stop", 2)
    assert second["prompt_tokens"] == 34


@pytest.mark.timeout(600)
def test_flan_t5_answers(flan_t5_bundle: Bundle) -> None:
    (row,) = rows(flan_t5_bundle.root, ["translate English to German: The house is wonderful."])
    assert (row["text"], row["finish_reason"]) == ("Das Haus ist wunderbar.", "stop")
