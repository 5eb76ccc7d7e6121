"""Fields out of an answer: JSON with exactly the keys that were asked for."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from alula.documents import Notice
from alula.ocr.spotting import unfenced

_MOST_CHARACTERS = 100_000


def read_fields(text: str, names: Sequence[str]) -> tuple[dict[str, Any], tuple[Notice, ...]]:
    """A value, or None, for each name in their order, and what was amiss.

    A key is taken for a name that it equals but for case and blanks around it; other keys are left out, and said. An
    empty value is how models say that they found none, and becomes None.
    """
    raw = _object(text)
    if raw is None:
        said = f"the answer is no JSON object with the fields asked for: {text.strip()[:60]!r}"
        return dict.fromkeys(names), (Notice(code="not-as-asked", message=said),)
    known = {_plain(key): key for key in reversed(raw)}
    found = {name: raw.get(name, raw.get(known.get(_plain(name), name))) for name in names}
    missing = [name for name in names if name not in raw and _plain(name) not in known]
    empty = [name for name, value in found.items() if name not in missing and _is_nothing(value)]
    found |= dict.fromkeys(empty)
    more = [key for key in raw if key not in names and _plain(key) not in set(map(_plain, names))]
    amiss = (
        f"{said}: {', '.join(keys)}"
        for said, keys in (("not found", empty), ("missing", missing), ("not asked for", more))
        if keys
    )
    return found, tuple(Notice(code="not-as-asked", message=f"fields {said}") for said in amiss)


def fields_to_text(fields: Mapping[str, Any]) -> str:
    """Fields as JSON, as a page's text has them."""
    return json.dumps(dict(fields), ensure_ascii=False)


def _object(text: str) -> dict[str, Any] | None:
    """The one object in a text, in JSON or in Python's words, whose quotes the prompt's own list suggests."""
    text = unfenced(text).strip()
    begin, end = text.find("{"), text.rfind("}")
    if not 0 <= begin < end or end - begin > _MOST_CHARACTERS:
        return None
    inner = text[begin : end + 1]
    for parse in (_json, ast.literal_eval):
        try:
            raw = parse(inner)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            continue
        if isinstance(raw, dict) and all(isinstance(key, str) for key in raw):
            return _storable(raw)
    return None


def _json(text: str) -> Any:
    return json.loads(text, parse_constant=lambda said: said)


def _storable(raw: dict[str, Any]) -> dict[str, Any] | None:
    """Only what JSON has: Python's words have more."""
    try:
        json.dumps(raw, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return raw


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _plain(name: str) -> str:
    return name.strip().casefold()
