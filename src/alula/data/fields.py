"""The fields of one row as an example of a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from alula.core.errors import InputError
from alula.core.words import IMAGE_TASKS, WRITING_TASKS
from alula.data import tagged
from alula.data.dataset import Example, Label, Span
from alula.data.images import IMAGES, image_of
from alula.data.prompts import ANSWERS, PROMPTS, prompt_of
from alula.data.rows import BadRow, Fields, listed, mistyped, words

TEXTS = (("text", "text_pair"), ("query", "passage"), ("question", "context"), ("sentence1", "sentence2"))
"""The names that one text or two go by; a row uses one line of these."""

ONE_TEXT = frozenset({"token-classification"})
TWO_TEXTS = frozenset({"reranking", "question-answering"})

LABELS: Mapping[str, tuple[str, ...]] = {
    "embeddings": ("score", "label"),
    "reranking": ("label", "score"),
    "sequence-classification": ("label", "labels", "score"),
    "token-classification": ("labels",),
    "question-answering": ("answers", "answer"),
    "image-classification": ("label",),
    "image-embeddings": (),
    "text-detection": (),
    "text-recognition": ("text", "label"),
    **dict.fromkeys(WRITING_TASKS, ANSWERS),
}
"""The fields a task takes its label from; a row uses one of them or none."""

ARRAYS = "arrays"
"""The field of a call to a model that takes arrays: their file."""

SCORED = frozenset({"embeddings", "reranking"})
"""Tasks whose label is a number whatever the field is called."""


def keys_of(task: str) -> tuple[str, ...]:
    """The fields that a row must have one of."""
    if task in IMAGE_TASKS:
        return IMAGES
    if task in WRITING_TASKS:
        return PROMPTS
    firsts = tuple(first for first, _ in TEXTS)
    return (*firsts, tagged.TOKENS) if task in ONE_TEXT else firsts


def fields_of(task: str) -> frozenset[str]:
    """Every field that rows of a task are made from."""
    labels = frozenset(LABELS[task])
    if task in IMAGE_TASKS:
        return labels.union(IMAGES)
    if task in WRITING_TASKS:
        return labels.union(PROMPTS, IMAGES)
    tokens = (tagged.TOKENS, tagged.TAGS) if task in ONE_TEXT else ()
    return labels.union(*TEXTS, tokens)


def check_columns(where: str, names: tuple[str, ...], task: str, must: str) -> None:
    """Refuse columns that no row can be read by; `must` begins what is wrong where none of the needed ones is there."""
    for name in names:
        if name and names.count(name) > 1:
            raise InputError(f"{where}: column {name[:40]!r} appears twice")
    keys = keys_of(task)
    if not set(keys) & set(names):
        raise InputError(f"{where}: {must}, one of them {', '.join(keys)}; it has {listed(names)}")


def example_of(fields: Fields, task: str, line: int, base: Path) -> Example:
    """The example that a row spells, or a `BadRow` that says what is wrong with it; `base` is where its paths begin."""
    if isinstance(call := fields.get(ARRAYS), Path):
        return Example(texts=(call.name,), arrays=call, line=line)
    if task in IMAGE_TASKS:
        return Example(image=image_of(fields, base), label=_image_label(fields, task), line=line)
    if task in WRITING_TASKS:
        return prompt_of(fields, line, base)
    if task in ONE_TEXT and fields.get(tagged.TOKENS) is not None:
        return _tagged(fields, line)
    texts = _texts(fields, task)
    return Example(texts=texts, label=_label(fields, task, texts), line=line)


def _image_label(fields: Fields, task: str) -> Label:
    name = _named_label(fields, task)
    if name is None:
        return None
    return words(fields[name], name) if task == "text-recognition" else _class_name(fields[name], name)


def _tagged(fields: Fields, line: int) -> Example:
    for name in ("text", "labels"):
        if fields.get(name) is not None:
            raise BadRow(
                f"has the fields {tagged.TOKENS} and {name}; expected words with tags or a text with spans"
            )
    return Example(texts=(tagged.text_of(fields),), label=tagged.spans_of(fields), line=line)


def _texts(fields: Fields, task: str) -> tuple[str, ...]:
    used = [names for names in TEXTS if any(fields.get(name) is not None for name in names)]
    if not used:
        raise BadRow(f"has no text: expected a field of {', '.join(keys_of(task))}; it has {listed(fields)}")
    if len(used) > 1:
        both = " and ".join(next(n for n in names if fields.get(n) is not None) for names in used[:2])
        raise BadRow(f"has the fields {both}, which name the same thing; expected one of them")
    first, second = used[0]
    texts = [_text(fields, first)]
    if fields.get(second) is not None or first != "text":
        texts.append(_text(fields, second))
    if task in ONE_TEXT and len(texts) == 2:
        raise BadRow(f"has two texts, {first} and {second}; {task} takes one")
    if task in TWO_TEXTS and len(texts) == 1:
        raise BadRow(f"has one text; {task} takes two, such as {_example_pair(task)}")
    return tuple(texts)


def _example_pair(task: str) -> str:
    return "question and context" if task == "question-answering" else "query and passage"


def _text(fields: Fields, name: str) -> str:
    if fields.get(name) is None:
        raise BadRow(f"field {name!r} is missing; it has {listed(fields)}")
    return words(fields[name], name)


def _label(fields: Fields, task: str, texts: tuple[str, ...]) -> Label:
    # One text has no similarity to anything: its label is about another task.
    name = None if task == "embeddings" and len(texts) == 1 else _named_label(fields, task)
    if name is None:
        return None
    value = fields[name]
    if task in SCORED or name == "score":
        return _number(value, name)
    if task == "sequence-classification":
        return _class(value, name) if name == "label" else _each(value, name, _class_name)
    if task == "token-classification":
        return _each(value, name, lambda item, where: _span(item, where, texts[0]))
    return _answers(value, name, texts[1])


def _named_label(fields: Fields, task: str) -> str | None:
    """The field that the label is in, if there is one."""
    given = [name for name in LABELS[task] if fields.get(name) is not None]
    if len(given) > 1:
        raise BadRow(f"has the fields {given[0]} and {given[1]}; expected one label")
    return given[0] if given else None


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise mistyped(name, value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadRow(f"field {name!r} is not a finite number")
    return number


def _class(value: object, name: str) -> str | float:
    return _number(value, name) if isinstance(value, float) else _class_name(value, name)


def _class_name(value: object, name: str) -> str:
    """A class by its name or its number, which is kept as a word, since CSV cannot tell them apart."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return words(value, name)


def _each(value: object, name: str, parse: Callable[[object, str], Span | str]) -> Label:
    if not isinstance(value, list):
        raise mistyped(name, value, "a list")
    return tuple(parse(item, f"{name}[{at}]") for at, item in enumerate(value))  # type: ignore[return-value] # all of one kind


def _span(item: object, where: str, text: str) -> Span:
    """`[start, end, label]`, or an object with these three, within the text."""
    parts = [item.get(key) for key in ("start", "end", "label")] if isinstance(item, dict) else item
    if not isinstance(parts, list) or len(parts) != 3:
        raise mistyped(where, item, "[start, end, label]")
    start, end, label = parts
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(text):
        raise BadRow(f"field {where!r} is no span of the text: need 0 <= start < end <= {len(text)}")
    return start, end, words(label, where)


def _answers(value: object, name: str, context: str) -> tuple[str, ...]:
    """One answer, a list of them, or SQuAD's object with a list called text; each stands in the context."""
    if isinstance(value, dict) and "text" in value:
        value, name = value["text"], f"{name}.text"
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise mistyped(name, value, "a list of str")
    answers = tuple(words(item, f"{name}[{at}]") for at, item in enumerate(value))
    if not answers:
        raise BadRow(f"field {name!r} is empty; a question without an answer cannot be judged")
    for at, answer in enumerate(answers):
        if answer.strip() not in context:
            raise BadRow(f"field '{name}[{at}]' does not stand in the context")
    return answers
