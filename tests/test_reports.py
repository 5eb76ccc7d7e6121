"""`docs/reports.md`: public reports of what went wrong elsewhere; each is held by a test here that names it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reports.md").read_text("utf-8")

LINK = re.compile(r"\[([\w.-]+/[\w.-]+)#(\d+)\]\((https://[^)]*)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows(page: str) -> list[list[str]]:
    """The cells of every row but the heads of tables."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "report" and set(row[0]) != {"-"}]


def faults(row: list[str]) -> Iterator[str]:
    """What is wrong with a row."""
    link = LINK.fullmatch(row[0])
    if len(row) != 4 or not all(row) or link is None:
        yield "has not an address and three cells with something in them"
        return
    if link[3] != f"https://github.com/{link[1]}/issues/{link[2]}":
        yield "leads elsewhere than it says"
    if not TEST.findall(row[3]):
        yield "has no test"
    tests = TEST.findall("|".join(row[2:]))
    lacking = [f"{file}::{name}" for file, name in tests if name not in defined(file)]
    if lacking:
        yield f"names tests that there are not: {lacking}"
    if not any(re.search(rf"{link[1]}#{link[2]}\b", source(file)) for file, _ in tests):
        yield "is named in none of the files of its tests"


@cache
def source(file: str) -> str:
    path = ROOT / file
    return path.read_text("utf-8") if path.is_file() else ""


@cache
def defined(file: str) -> frozenset[str]:
    """Names of the tests that a file defines, by its text alone."""
    functions = [each for each in ast.parse(source(file)).body if isinstance(each, ast.FunctionDef)]
    return frozenset(each.name for each in functions if each.name.startswith("test_"))


@pytest.mark.parametrize("row", rows(PAGE), ids=lambda row: row[0].partition("]")[0].strip("["))
def test_a_report_is_held_by_tests_that_there_are_and_that_name_it(row: list[str]) -> None:
    assert list(faults(row)) == []


def test_every_report_has_one_row() -> None:
    reports = [row[0] for row in rows(PAGE)]
    assert len(reports) > 60
    assert len(set(reports)) == len(reports)


def test_a_row_that_is_wrong_is_found() -> None:
    good = next(row for row in rows(PAGE) if "onnx/onnx#6655" in row[0])
    for cell, old, new, said in (
        (0, "](", "] (", "has not an address"),
        (0, "issues/6655", "issues/6656", "leads elsewhere than it says"),
        (0, "6655", "5566", "is named in none"),
        (1, good[1], "", "has not an address"),
        (3, "`", "", "has no test"),
        (3, "::test_saving", "::test_no_saving", "names tests that there are not"),
        (3, "graphs/test_save", "graphs/test_nowhere", "names tests that there are not"),
    ):
        wrong = [*good[:cell], good[cell].replace(old, new), *good[cell + 1 :]]
        assert said in " ".join(faults(wrong))
