"""Answers of a model that writes text, for `alula run --prompt`: shown as they come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from alula.bundles import Bundle
from alula.cli.console import Phases, print_json, without_control
from alula.codecs import Message, Patches, TextCodec, decode
from alula.core.errors import InputError
from alula.prompting import Prompts

if TYPE_CHECKING:
    from alula.generate import Generator, Piece, Request

STDIN = "-"
FAILED, INTERRUPTED = 1, 130

_SHOWN_OF_A_PROMPT = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Writing:
    """The options of the command line that are for models that write; `chat` None leaves it to the checkpoint.

    Every prompt is about all of the `images`.
    """

    prompts: Sequence[str]
    images: Sequence[Path] = ()
    system: str | None = None
    chat: bool | None = None
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> list[str]:
        """The options that were given, by their names."""
        named = {"prompt": self.prompts, "system": self.system, "chat": self.chat, **self.body}
        return [f"--{name.replace('_', '-')}" for name, value in named.items() if value not in (None, [], ())]


@dataclass(kw_only=True, slots=True)
class Answer:
    """What has come of one answer so far, and when."""

    prompt: str
    request: Request
    started: float = 0.0
    text: str = ""
    tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    ending: str | None = None
    stopped_by: int | str | None = None
    error: str = ""

    def take(self, piece: Piece, now: float) -> None:
        """Add what a step gave."""
        if piece.tokens and not self.tokens:
            self.first = now
        self.text += piece.text
        self.tokens += len(piece.tokens)
        self.last = now
        self.ending, self.stopped_by, self.error = piece.ending, piece.stopped_by, piece.error

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.ending is not None or bool(self.error)

    @property
    def speed(self) -> float | None:
        """Tokens a second once the first has come; None of fewer than two."""
        took = self.last - self.first
        return (self.tokens - 1) / took if self.tokens > 1 and took > 0 else None

    def row(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "prompt": self.prompt,
            "text": self.text,
            "prompt_tokens": self.request.read,
            "tokens": self.tokens,
            "finish_reason": self.ending or ("error" if self.error else "interrupted"),
            "stopped_by": self.stopped_by,
            "error": self.error or None,
            "first_token_s": self.first - self.started if self.tokens else None,
            "tokens_per_s": self.speed,
        }


def check_writing(bundle: Bundle, asked: Writing, *, others: bool) -> None:
    """Refuse what is for models that write where this one does not, and all else where it does."""
    task = bundle.model.task
    if not bundle.model.writes:
        raise InputError(f"{asked.given[0]} is not for task {task!r}, which writes no text")
    if others:
        reads = (
            "--prompt TEXT and --image FILE, and no texts"
            if bundle.model.sees
            else "--prompt TEXT, and no texts, images"
        )
        raise InputError(f"task {task!r} takes {reads} or arrays")


def _opened(bundle: Bundle, codec: TextCodec) -> Generator:
    from alula.generating import open_generator  # noqa: PLC0415 - loads a runtime

    return open_generator(bundle, codec=codec)


def write(
    bundle: Bundle,
    asked: Writing,
    *,
    as_json: bool,
    opens: Callable[[Bundle], Generator] | None = None,
) -> int:
    """Answer every prompt, all of them together, and print the answers in order; the exit code."""
    prompts = Prompts.open(bundle)
    texts = _read(asked.prompts, bundle)
    seen = [prompts.patches(decode(path)) for path in asked.images]
    _requests(prompts, texts, asked, seen)  # what cannot be asked is refused before an engine is loaded

    with Phases().phase("load the engine"):
        generator = opens(bundle) if opens else _opened(bundle, prompts.codec)
    with closing(generator):
        requests = _requests(prompts.within(generator.holds), texts, asked, seen)
        answers = [Answer(prompt=text, request=each) for text, each in zip(texts, requests, strict=True)]
        shown = None if as_json else Shown(answers)
        interrupted = answer_all(generator, answers, shown)
    if as_json:
        print_json("run", [each.row() for each in answers], model=bundle.model.name, task=bundle.model.task)
    return INTERRUPTED if interrupted else FAILED if any(each.error for each in answers) else 0


def answer_all(generator: Generator, answers: Sequence[Answer], shown: Shown | None) -> bool:
    """Run until all is answered; whether an interrupt came before, which leaves what there is."""
    try:
        for number, each in enumerate(answers):
            each.started = perf_counter()
            generator.add(number, each.request, given=each.request.given)
        while generator.busy:
            for piece in generator.step(perf_counter()):
                answers[piece.id].take(piece, perf_counter())
            if shown:
                shown.go_on()
    except KeyboardInterrupt:
        if shown:
            shown.end()
        return True
    return False


class Shown:
    """Answers on stdout in their order: one as it comes, the next when it is over. What they took goes to stderr."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers
        self._terminal = sys.stdout.isatty()
        self._at = 0
        self._written = 0
        self._begun = False

    def go_on(self) -> None:
        """Write what has come."""
        while self._at < len(self._answers):
            answer = self._answers[self._at]
            self._write(answer)
            if not answer.over:
                return
            self._finish(answer)

    def end(self) -> None:
        """Write what there is, all of which an interrupt has left open."""
        for answer in self._answers[self._at :]:
            if answer.tokens:
                self._write(answer)
                self._finish(answer)

    def _write(self, answer: Answer) -> None:
        if not self._begun and len(self._answers) > 1:
            first = " ".join(answer.prompt.split())
            cut = first if len(first) <= _SHOWN_OF_A_PROMPT else f"{first[:_SHOWN_OF_A_PROMPT]} ..."
            print("\n" * bool(self._at) + f"> {self._safe(cut)}")
        self._begun = True
        print(self._safe(answer.text[self._written :]), end="", flush=True)
        self._written = len(answer.text)

    def _finish(self, answer: Answer) -> None:
        print(flush=True)
        print(_summary(answer), file=sys.stderr)
        self._at, self._written, self._begun = self._at + 1, 0, False

    def _safe(self, text: str) -> str:
        return without_control(text) if self._terminal else text


def _summary(answer: Answer) -> str:
    if answer.error:
        return f"alula: {answer.error}"
    parts = [f"{answer.request.read} tokens read", f"{answer.tokens} written"]
    if answer.tokens:
        parts.append(f"the first after {answer.first - answer.started:.2f} s")
    if answer.speed is not None:
        parts.append(f"then {answer.speed:.1f} a second")
    if answer.ending is None:
        parts.append("interrupted")
    elif answer.ending == "length":
        parts.append(f"cut there, since no more than {answer.request.stopping.max_tokens} were allowed")
    return f"+ {', '.join(parts)}"


def _requests(
    prompts: Prompts, texts: Sequence[str], asked: Writing, seen: Sequence[Patches]
) -> list[Request]:
    """A request for each; of several, an error says which."""
    if len(texts) == 1:
        return [_request(prompts, texts[0], asked, seen)]
    return [_numbered(at, prompts, text, asked, seen) for at, text in enumerate(texts, start=1)]


def _numbered(at: int, prompts: Prompts, text: str, asked: Writing, seen: Sequence[Patches]) -> Request:
    try:
        return _request(prompts, text, asked, seen)
    except InputError as error:
        raise InputError(f"--prompt no. {at}: {error}") from error


def _request(prompts: Prompts, text: str, asked: Writing, seen: Sequence[Patches]) -> Request:
    chats = asked.chat
    if chats is None:
        chats = asked.system is not None or (not prompts.spec.reads_source and prompts.template is not None)
    if not chats:
        if asked.system is not None:
            raise InputError("--system is for a chat, which --no-chat says this is not")
        return prompts.text(text, asked.body, seen)
    if prompts.spec.sees:
        return prompts.look(text, seen, asked.body, system=asked.system)
    system = [] if asked.system is None else [Message(role="system", content=asked.system)]
    return prompts.chat([*system, Message(role="user", content=text)], asked.body)


def _read(given: Sequence[str], bundle: Bundle) -> list[str]:
    """The prompts, one of which may come from stdin; all of them where none is given and stdin is no terminal."""
    if not given and sys.stdin.isatty():
        raise InputError(f"--prompt is missing for task {bundle.model.task!r}")
    named = given or [STDIN]
    if list(named).count(STDIN) > 1:
        raise InputError(f"--prompt {STDIN} is given twice; stdin is read once")
    texts = [_stdin() if text == STDIN else text for text in named]
    for at, text in enumerate(texts):
        if not text:
            where = "what stdin gave" if named[at] == STDIN else "--prompt"
            raise InputError(f"{where} is empty, expected a text")
    return texts


def _stdin() -> str:
    """All of stdin but for the newline that ends it."""
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"stdin is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
        ) from error
    return text.removesuffix("\n").removesuffix("\r")
