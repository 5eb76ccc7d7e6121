"""Sentences for tests and tables: many from few words, some with personal data whose place is known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SUBJECTS = ("The doctor", "A student", "My neighbour", "Our engineer", "Anna Berg", "The committee")
DEEDS = ("wrote", "lost", "sold", "repaired", "described", "looked for")
THINGS = (
    "a letter",
    "three guitars",
    "the invoice no. 2024-118",
    "an email to a@b.org",
    "42 boxes",
    "the old bridge",
)
TIMES = ("yesterday", "before the war", "in 1878", "on Monday morning", "for 12.50 EUR", "although it rained")

WORDS: Mapping[str, Sequence[str]] = {
    "GIVEN_NAME": ("Sarah", "Peter", "Maria", "John", "David", "Laura", "Robert", "Karen", "Emily", "Thomas"),
    "SURNAME": ("Connor", "Miller", "Lopez", "Smith", "White", "Baker", "Johnson", "Wilson", "Clark"),
    "CITY": ("Boston", "Chicago", "Denver", "Seattle", "Miami", "Portland", "Austin", "Dallas"),
    "STREET_NAME": ("Oak Street", "Pine Avenue", "Main Street", "Maple Drive"),
    "BUILDING_NUMBER": ("12", "77", "1040", "5"),
    "PHONE": ("212-555-0187", "415-555-0132", "(303) 555-0144"),
}
FRAMES = (
    "My name is {GIVEN_NAME} {SURNAME} and I live in {CITY}.",
    "{GIVEN_NAME} {SURNAME} moved to {CITY} last year.",
    "{GIVEN_NAME} {SURNAME} lives at {BUILDING_NUMBER} {STREET_NAME} in {CITY}.",
    "Please call {GIVEN_NAME} at {PHONE} before noon.",
    "{GIVEN_NAME} and {GIVEN_NAME} went to {CITY} with {GIVEN_NAME} {SURNAME}.",
    "The committee meets again in three weeks.",
    "We raised the price by four percent.",
)


def sentences(count: int, seed: int = 0) -> list[str]:
    """One to five short sentences a text."""
    rng = np.random.default_rng(seed)
    return [
        " ".join(
            " ".join(str(rng.choice(words)) for words in (SUBJECTS, DEEDS, THINGS, TIMES)) + "."
            for _ in range(int(rng.integers(1, 6)))
        )
        for _ in range(count)
    ]


def personal(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of token classification: one to three sentences, and what is personal in them."""
    rng = np.random.default_rng(seed)
    return [_row(rng) for _ in range(count)]


def _row(rng: np.random.Generator) -> dict[str, Any]:
    frame = " ".join(str(rng.choice(FRAMES)) for _ in range(int(rng.integers(1, 4))))
    text, labels, done = "", [], 0
    for slot in re.finditer(r"\{(\w+)\}", frame):
        text += frame[done : slot.start()]
        word = str(rng.choice(WORDS[slot[1]]))
        labels.append([len(text), len(text) + len(word), slot[1]])
        text, done = text + word, slot.end()
    return {"text": text + frame[done:], "labels": labels}
