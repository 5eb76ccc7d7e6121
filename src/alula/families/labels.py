"""The labels that config.json names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alula.core.errors import InputError

_MOST = 1 << 20


def read_labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Labels in the order of their ids; transformers means two where nothing is said."""
    named = config.get("id2label")
    if not named:
        count = config.get("num_labels") or 2
        if type(count) is not int or not 1 <= count <= _MOST:
            raise InputError(f"config.json: num_labels is {count!r}, expected 1..{_MOST}")
        return tuple(f"LABEL_{index}" for index in range(count))
    try:
        by_id = {int(key): str(label) for key, label in named.items()}
    except (ValueError, AttributeError) as error:
        raise InputError(f"config.json: id2label is {named!r}, expected labels by number") from error
    if sorted(by_id) != list(range(len(by_id))):
        raise InputError(f"config.json: id2label has ids {sorted(by_id)}, expected 0..{len(by_id) - 1}")
    return tuple(by_id[index] for index in range(len(by_id)))
