from __future__ import annotations

from typing import Any

import pytest

from alula.core.errors import ManifestError
from alula.core.parse import get, get_each, get_one, get_words


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "n: is missing"),
        ({"n": "1"}, "n: is str, expected int"),
        ({"n": True}, "n: is bool, expected int"),
        ({"n": 1.0}, "n: is float, expected int"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        get(raw, int, "n")


def test_a_float_may_be_written_as_a_whole_number_but_not_as_a_truth() -> None:
    assert get({"n": 1}, float, "n") == 1.0
    with pytest.raises(ManifestError, match="n: is bool, expected float"):
        get({"n": True}, float, "n")


def test_an_error_inside_names_the_whole_path() -> None:
    raw = {"a": {"b": [{"n": 1}, {"n": "x"}]}}
    with pytest.raises(ManifestError, match=r"^a\.b\[1\]\.n: is str, expected int$"):
        get_one(raw, "a", lambda a: get_each(a, "b", lambda b: get(b, int, "n")))
    with pytest.raises(ManifestError, match=r"^b\[0\]: is not an object$"):
        get_each({"b": [3]}, "b", lambda b: b)
    with pytest.raises(ManifestError, match=r"^w\[1\]: is int, expected str$"):
        get_words({"w": ["a", 2]}, "w")
