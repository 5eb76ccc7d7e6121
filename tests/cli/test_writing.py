"""`alula run --prompt`: answers as they come, in order, and what cannot be asked."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import parrot
import pytest
import served

from alula.bundles import Bundle
from alula.cli.run import run
from alula.cli.writing import Writing, check_writing, write
from alula.core.decoding import Logits, Room, Work
from alula.core.errors import InputError
from alula.generate import Generator, Limits

Opens = Callable[[Bundle], Generator]


class Interrupted(parrot.Parrot):
    """Control-C comes in one of its steps."""

    def __init__(self, room: Room, at: int) -> None:
        super().__init__(room)
        self._left = at

    def step(self, work: Sequence[Work]) -> Logits:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        return super().step(work)


def generator(session: Callable[[Room], parrot.Parrot] = parrot.Parrot, blocks: int = 64) -> Opens:
    room = Room(sequences=4, blocks=blocks, block_tokens=8)
    limits = Limits(sequences=4, blocks=blocks, block_tokens=8, step_tokens=64, chunk_tokens=64)
    return lambda bundle: Generator(session(room), limits, parrot.tokenizer().decode)


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return Bundle.open(served.make_writer(tmp_path_factory.mktemp("writer") / "chat"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return Bundle.open(served.make_writer(tmp_path_factory.mktemp("writer") / "plain", chat=False))


def asking(*prompts: str, **more: Any) -> Writing:
    body = {name: more.pop(name) for name in list(more) if name not in ("system", "chat")}
    return Writing(prompts=prompts, body=body, **more)


def rows(captured: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(captured.readouterr().out)["rows"]
    return found


def test_an_answer_is_text_on_stdout_and_what_it_took_on_stderr(
    writer: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert write(writer, asking("Hello, wörld 🎉"), as_json=False, opens=generator()) == 0
    said = capsys.readouterr()
    assert said.out == "Hello, wörld 🎉\n"
    assert "load the engine" in said.err
    assert "+ 19 tokens read, 19 written, the first after 0." in said.err
    assert " a second" in said.err


def test_text_comes_as_it_is_written(writer: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    """By the sixth step five letters are out, though the answer is not over."""
    opens = generator(lambda room: Interrupted(room, 5))
    assert write(writer, asking("Hello, world"), as_json=False, opens=opens) == 130
    said = capsys.readouterr()
    assert said.out == "Hello\n"
    assert "5 written" in said.err
    assert "interrupted" in said.err


def test_several_are_answered_together_and_printed_in_order(
    writer: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    together = []

    class Counting(parrot.Parrot):
        def step(self, work: Sequence[Work]) -> Logits:
            together.append(len(work))
            return super().step(work)

    asked = asking("the first one", "second", "3")
    assert write(writer, asked, as_json=False, opens=generator(Counting)) == 0
    assert capsys.readouterr().out == "> the first one\nthe first one\n\n> second\nsecond\n\n> 3\n3\n"
    assert max(together) == 3


def test_an_interrupt_leaves_what_there_is_of_all(writer: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    opens = generator(lambda room: Interrupted(room, 3))
    assert write(writer, asking("abcdef", "x", "uvwxyz"), as_json=False, opens=opens) == 130
    assert capsys.readouterr().out == "> abcdef\nabc\n\n> x\nx\n\n> uvwxyz\nuvw\n"
    opens = generator(lambda room: Interrupted(room, 3))
    assert write(writer, asking("abcdef", "x"), as_json=True, opens=opens) == 130
    assert [(row["text"], row["finish_reason"]) for row in rows(capsys)] == [
        ("abc", "interrupted"),
        ("x", "stop"),
    ]


def test_json_has_text_counts_and_times(writer: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    asked = asking("abcdef", max_tokens=3)
    assert write(writer, asked, as_json=True, opens=generator()) == 0
    (row,) = rows(capsys)
    assert row["first_token_s"] > 0
    assert row["tokens_per_s"] > 0
    kept = {
        name: row[name] for name in ("prompt", "text", "prompt_tokens", "tokens", "finish_reason", "error")
    }
    assert kept == {
        "prompt": "abcdef",
        "text": "abc",
        "prompt_tokens": 7,
        "tokens": 3,
        "finish_reason": "length",
        "error": None,
    }


@pytest.mark.parametrize(
    ("body", "text", "ending", "by"),
    [
        ({}, "abcdef", "stop", parrot.END),
        ({"max_tokens": 2}, "ab", "length", None),
        ({"stop": ["de"]}, "abc", "stop", "de"),
        ({"temperature": 0.001, "seed": 3, "top_p": 0.5, "top_k": 2}, "abcdef", "stop", parrot.END),
    ],
)
def test_options_reach_the_answer(
    body: dict[str, Any],
    text: str,
    ending: str,
    by: object,
    writer: Bundle,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert write(writer, asking("abcdef", **body), as_json=True, opens=generator()) == 0
    (row,) = rows(capsys)
    assert (row["text"], row["finish_reason"], row["stopped_by"]) == (text, ending, by)


def test_a_chat_is_rendered_where_there_is_a_template_unless_it_is_told_not_to(
    writer: Bundle, plain: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    """The template ends a prompt with a bar, and puts what the system says before it."""
    for bundle, asked, read, text in (
        (writer, asking("ab"), 3, "ab"),
        (writer, asking("ab|", chat=False), 3, "ab"),
        (writer, asking("ab", system="you "), 7, "you ab"),
        (plain, asking("ab|"), 3, "ab"),
    ):
        assert write(bundle, asked, as_json=True, opens=generator()) == 0
        (row,) = rows(capsys)
        assert (row["prompt_tokens"], row["text"]) == (read, text)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (asking("ab", chat=True), "has no chat template, so it takes prompts and no messages"),
        (asking("ab", system="you"), "has no chat template"),
        (asking("ab", system="you", chat=False), "--system is for a chat, which --no-chat says this is not"),
        (asking(""), "--prompt is empty, expected a text"),
        (asking("a", ""), "--prompt is empty"),
        (asking("-", "-"), "--prompt - is given twice; stdin is read once"),
        (asking("a" * 600), "the prompt has 600 tokens; tiny/text-generation takes 512"),
        (asking("a", "b" * 600), "--prompt no. 2: the prompt has 600 tokens"),
        (asking("abc", max_tokens=600), "max_tokens is 600 behind 3 tokens; expected at most 509"),
        (asking("abc", temperature=3.0), "temperature is 3.0; expected 0 to 2"),
        (asking("a\udc80"), "text has the lone surrogate U+DC80 at character 1"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_an_engine_is_loaded(
    asked: Writing, said: str, plain: Bundle
) -> None:
    def never(bundle: Bundle) -> Generator:
        raise AssertionError("an engine was loaded")

    with pytest.raises(InputError, match=re.escape(said)):
        write(plain, asked, as_json=False, opens=never)


def test_a_cache_that_holds_less_than_the_model_leaves_less(
    plain: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    opens = generator(blocks=2)
    assert write(plain, asking("~ab|"), as_json=True, opens=opens) == 0
    (row,) = rows(capsys)
    assert row["prompt_tokens"] + row["tokens"] == opens(plain).holds < 20
    with pytest.raises(InputError, match="max_tokens is 100 behind 4 tokens; expected at most"):
        write(plain, asking("~ab|", max_tokens=100), as_json=True, opens=opens)


def test_an_answer_that_fails_leaves_the_others(writer: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    asked = asking("abcNANd", "fine")
    assert write(writer, asked, as_json=False, opens=generator()) == 1
    said = capsys.readouterr()
    assert said.out == "> abcNANd\nab\n\n> fine\nfine\n"
    assert "alula: the model answered NaN" in said.err
    assert write(writer, asked, as_json=True, opens=generator()) == 1
    failed, fine = rows(capsys)
    assert (failed["finish_reason"], fine["finish_reason"]) == ("error", "stop")
    assert "NaN" in failed["error"]


def stdin(monkeypatch: pytest.MonkeyPatch, raw: bytes, *, terminal: bool = False) -> None:
    file = io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8")
    file.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", file)


@pytest.mark.parametrize("asked", [asking("-"), asking()])
def test_a_prompt_comes_from_stdin(
    asked: Writing, writer: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(monkeypatch, "zwei\nZeilen: ü\n".encode())
    assert write(writer, asked, as_json=False, opens=generator()) == 0
    assert capsys.readouterr().out == "zwei\nZeilen: ü\n"


@pytest.mark.parametrize(
    ("raw", "terminal", "said"),
    [
        (b"", False, "what stdin gave is empty"),
        (b"\xff", False, "stdin is not UTF-8: byte 0 is 0xff"),
        (b"", True, "--prompt is missing for task 'text-generation'"),
    ],
)
def test_stdin_without_a_prompt_is_refused(
    raw: bytes, terminal: bool, said: str, writer: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin(monkeypatch, raw, terminal=terminal)
    with pytest.raises(InputError, match=said):
        write(writer, asking(), as_json=False, opens=generator())


@pytest.mark.parametrize(("terminal", "out"), [(True, "a\\x1b[2Jb\tc\\x0dd\n"), (False, "a\x1b[2Jb\tc\rd\n")])
def test_an_answer_does_not_steer_the_terminal(
    terminal: bool,
    out: str,
    writer: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert write(writer, asking("a\x1b[2Jb\tc\rd"), as_json=False, opens=generator()) == 0
    assert capsys.readouterr().out == out


def test_an_encoder_reads_the_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = Bundle.open(served.make_writer(tmp_path / "t5", "text2text-generation"))
    assert write(bundle, asking("abc|"), as_json=True, opens=generator()) == 0
    (row,) = rows(capsys)
    assert (row["text"], row["prompt_tokens"]) == ("abc", 4)


def test_options_of_other_tasks_are_refused_either_way(writer: Bundle, tmp_path: Path) -> None:
    reader = Bundle.open(served.make_bundle(tmp_path / "reader"))
    with pytest.raises(InputError, match="--prompt is not for task 'embeddings', which writes no text"):
        check_writing(reader, asking("a"), others=False)
    with pytest.raises(InputError, match="--top-k is not for task 'embeddings'"):
        check_writing(reader, asking(top_k=3), others=False)
    with pytest.raises(InputError, match="task 'text-generation' takes --prompt TEXT, and no texts"):
        check_writing(writer, asking("a"), others=True)


def test_the_command_refuses_them_too(writer: Bundle) -> None:
    given: dict[str, Any] = {"prompt": [], "chat": None, "system": None, "stop": []}
    given |= dict.fromkeys(("max_tokens", "temperature", "top_p", "top_k", "seed"))
    reading: dict[str, Any] = {"text": ["a"], "query": None, "question": None, "context": None, "image": []}
    with pytest.raises(InputError, match="takes --prompt TEXT"):
        run(writer.root, **reading, **given, feeds=None, out=None, as_json=False)
