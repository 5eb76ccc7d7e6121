"""What reads pages, whatever it is made of, and what is asked of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from alula.core.errors import InputError
from alula.documents import TASKS, Page, Scan, Task

MAX_TOKENS = 4096
"""Of one page's answer, where nothing else is said: a full page of text takes about 1400."""

PICTURES: tuple[Task, ...] = ("chart", "ask")
"""Tasks about more than letters: no page is too blurred for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """What is asked of every page: `fields` with the task of that name, `to` with `translate`, `question` with `ask`.

    `language` is that of the prompt, where a model takes one. Readers without prompts use neither it nor `max_tokens`.
    """

    task: Task
    fields: tuple[str, ...] = ()
    to: str = ""
    question: str = ""
    language: Literal["en", "zh"] = "en"
    max_tokens: int = MAX_TOKENS

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(f"task is {self.task!r}; expected one of: {', '.join(TASKS)}")
        for name, value, task in (
            ("fields", self.fields, "fields"),
            ("to", self.to, "translate"),
            ("question", self.question, "ask"),
        ):
            if bool(value) != (self.task == task):
                raise InputError(f"{name} is {'not for' if value else 'missing for'} task {self.task!r}")
        if any(not name.strip() for name in self.fields) or len(set(self.fields)) < len(self.fields):
            raise InputError(f"fields are {list(self.fields)}; expected different names, none of them empty")
        if self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}; expected at least 1")


class Reader(Protocol):
    """Reads pages. Not thread-safe: one owner at a time, who closes it."""

    @property
    def name(self) -> str:
        """What the model is called."""
        ...

    @property
    def tasks(self) -> Collection[Task]:
        """What may be asked of it; `check` refuses the rest before any file is opened."""
        ...

    def read(self, scans: Iterable[Scan], ask: Ask) -> Iterator[Page]:
        """One page for each scan, in their order, each given as soon as it and those before it are read.

        Lazy: a scan is taken only when there is room to work on it, and let go of when its page is given, so however
        many there are, no more are in memory than the reader has in flight. They may be of several files. What goes
        wrong with one page is a page with the notice `failed`; what is raised (`EngineError`, or what `scans` itself
        raises) ends all. Leaving the iterator (its `close`) cancels what is in flight.
        """
        ...

    def close(self) -> None:
        """Release what it holds. Safe to call twice."""
        ...


def check(reader: Reader, ask: Ask) -> None:
    """Refuse a task that this reader has not."""
    if ask.task not in reader.tasks:
        known = ", ".join(task for task in TASKS if task in reader.tasks)
        raise InputError(f"task is {ask.task!r}; {reader.name} does: {known}")
