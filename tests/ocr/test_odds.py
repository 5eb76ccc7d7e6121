"""What a model guessed is told from what it read, by the probabilities of its own words."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from alula.documents import Scan
from alula.generate import Chosen, Piece
from alula.ocr import Ask
from alula.ocr.answers import Written, page_of, untaught
from alula.ocr.odds import Odds, unsure, value_in


def written(*said: tuple[str, float]) -> tuple[str, Odds]:
    """Pieces, each of one token with its probability; text that is held back comes with the next one."""
    text, odds = "", Odds()
    for piece, probability in said:
        text += piece
        token = Chosen(token=1, logprob=math.log(probability))
        odds.push(Piece(id=0, text=piece, tokens=(token,)), len(text))
    return text, odds


def messages(text: str, odds: Odds, **fields: str) -> list[str]:
    return [notice.message for notice in unsure(text, odds, fields or None)]


def test_a_page_of_guesses_is_told() -> None:
    assert messages(*written(("a", 0.9), ("b", 0.6))) == []
    [said] = messages(*written(("a", 0.4), ("b", 0.4)))
    assert said == "the model was unsure of what it wrote: its tokens have a probability of 0.40 in the mean"


def test_where_no_probabilities_were_asked_for_nothing_is_said() -> None:
    odds = Odds()
    odds.push(Piece(id=0, text='{"a": "b"}', tokens=(Chosen(token=1),)), 10)
    assert odds.mean is None
    assert messages('{"a": "b"}', odds, a="b") == []


def test_a_value_that_was_guessed_is_named_and_others_are_not() -> None:
    said = [('{"', 1.0), ("total", 0.2), ('": "', 1.0), ("9", 0.95), ("9", 0.9), ('", "', 1.0)]
    said += [("tel", 1.0), ('": "', 1.0), ("", 0.3), ("é", 0.9), ("7", 0.99), ('"}', 1.0)]
    text, odds = written(*said, *[(" ", 1.0)] * 20)
    assert text.strip() == '{"total": "99", "tel": "é7"}'
    [notice] = messages(text, odds, **json.loads(text))
    assert notice == "the model was unsure of fields (the least probability of a token): tel (0.30)"


def test_words_with_a_doubtful_token_are_named_and_corners_and_sure_ones_are_not() -> None:
    """Of a receipt with two entries in a row one line became `Receipt 2026-04-14`, with parts of both."""
    said = [
        ("Receipt 20", 0.99),
        ("26-04-", 0.98),
        ("14", 0.55),
        ("\nPaid by ", 0.9),
        ("card", 0.97),
        ("</td>", 0.3),
    ]
    [notice] = messages(*written(*said, *[(" x", 1.0)] * 20))
    names = "'2026-04-14' (0.55), 'card</td>' (0.30)"
    assert notice == f"the model was unsure of words (the least probability of a token): {names}"
    spotted = [
        ("To", 0.5),
        ("tal(1", 0.4),
        ("2,3", 0.2),
        ("),(45,67)", 0.1),
        ("Sum", 0.9),
        ("(1,2),(3,4)", 0.1),
    ]
    [notice] = messages(*written(*spotted, *[(" x", 1.0)] * 20))
    assert notice.endswith(": 'Total' (0.40)")
    many = messages(*written(*[("word ", 0.59), ("sure ", 1.0)] * 7))
    assert many[0].endswith("'word' (0.59) and 2 more")
    assert len(messages(*written(("a", 0.1)))) == 1, "a page of guesses is told once"


def test_digits_must_be_surer_than_letters() -> None:
    """Of a sample page a `9` that looks like a `q` was read as a `3` with a probability of 0.69, in silence."""
    [notice] = messages(*written(("kept ", 0.7), ("12", 0.99), ("3", 0.69), (" ", 1.0), ("word", 0.65)))
    assert notice.endswith("(the least probability of a token): '123' (0.69)")
    assert messages(*written(("12", 0.99), ("3", 0.81))) == []
    for value, names in (("9", " a (0.70)"), ("x", None)):
        text, odds = written(('{"a": "', 1.0), (value, 0.7), ('"}', 1.0), *[(" ", 1.0)] * 9)
        found = messages(text, odds, a=value)
        assert [said.rpartition(":")[2] for said in found] == ([] if names is None else [names])


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ('{"a": "x", "b": [1, 2]}', "b", "[1, 2]"),
        ('```json\n{"a b" :"x"}\n```', "a b", '"x"'),
        ('{"say \\"hi\\"": null}', 'say "hi"', "null"),
        ('{"a": "cut of', "a", None),
        ('{"a": 1}', "b", None),
    ],
)
def test_values_are_found_where_they_were_written(text: str, name: str, found: str | None) -> None:
    place = value_in(text, name)
    assert (None if place is None else text[slice(*place)]) == found


def test_a_task_that_was_not_taught_is_noticed_on_every_page() -> None:
    scan = Scan(source="a.png", index=0, pixels=np.zeros((4, 4, 3), np.uint8))
    taught = ("text", "table")
    known = untaught("small", taught, Ask(task="chart"))
    page = page_of(scan, Written(text="a"), Ask(task="chart"), known=known)
    assert [notice.code for notice in page.notices] == ["untaught"]
    assert "small was not taught the task chart, but: text, table" in page.notices[0].message
    assert untaught("small", taught, Ask(task="table")) == ()
    assert untaught("full", (), Ask(task="chart")) == ()
