"""Words with a tag each, as CoNLL's sets have them, as a text and its spans."""

from __future__ import annotations

from alula.data.dataset import Span
from alula.data.rows import BadRow, Fields, mistyped, words

TOKENS, TAGS = "tokens", "ner_tags"


def text_of(fields: Fields) -> str:
    """The words with one space between them."""
    return " ".join(_tokens(fields))


def spans_of(fields: Fields) -> tuple[Span, ...] | None:
    """The entities that tags such as B-PER, I-PER and O spell; None where there are no tags.

    An I- behind another kind of entity begins one, as in CoNLL's own scoring; tags without B- and I- count as I-.
    """
    if fields.get(TAGS) is None:
        return None
    tokens, tags = _tokens(fields), _strings(fields[TAGS], TAGS)
    if len(tokens) != len(tags):
        raise BadRow(f"has {len(tokens)} {TOKENS} and {len(tags)} {TAGS}; expected a tag for each")
    spans: list[Span] = []
    end, open_kind = -1, ""
    for token, tag in zip(tokens, tags, strict=True):
        start, end = end + 1, end + 1 + len(token)
        begins, kind = _parts(tag)
        if kind and kind == open_kind and not begins:
            spans[-1] = (spans[-1][0], end, kind)
        elif kind:
            spans.append((start, end, kind))
        open_kind = kind
    return tuple(spans)


def _parts(tag: str) -> tuple[bool, str]:
    """Whether a tag begins an entity, and of which kind, which is empty outside of any."""
    if tag == "O":
        return False, ""
    prefix, dash, kind = tag.partition("-")
    return (prefix == "B", kind) if dash and kind and prefix in {"B", "I"} else (False, tag)


def _tokens(fields: Fields) -> list[str]:
    tokens = _strings(fields[TOKENS], TOKENS)
    if not tokens:
        raise BadRow(f"field {TOKENS!r} is empty")
    return tokens


def _strings(value: object, name: str) -> list[str]:
    if not isinstance(value, list):
        raise mistyped(name, value, "a list of str")
    return [words(item, f"{name}[{at}]") for at, item in enumerate(value)]
