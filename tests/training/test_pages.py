"""Pages with exact ground truth: the same from the same number, and what is said of them is what is on them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import numpy as np
import pytest
from training.batches import SLOTS, Plan, cells_of, joined
from training.canvas import PAPER, Canvas
from training.characters import ALPHABET
from training.fonts import FACES, Fonts
from training.keep import STEP, keep, kept
from training.layouts import LAYOUTS, said
from training.prompts import FIELDS, PROMPTS
from training.render import HELD_SEED, LARGE, SMALL, Page, coloured, described, render
from training.sights import CELL, sights_of
from training.tokenizer import IMAGE, IMAGE_BEGIN, PAD, build
from training.words import Writer

PAGES = 60


@pytest.fixture(scope="module")
def pages(fonts: Path) -> list[Page]:
    opened = Fonts.open(fonts, held=False)
    return [render(number, seed=3, fonts=opened, shape=LARGE[number % len(LARGE)]) for number in range(PAGES)]


def test_a_page_comes_from_its_number_alone(pages: list[Page], fonts: Path) -> None:
    opened = Fonts.open(fonts, held=False)
    for number in (11, 0, 7):
        again = render(number, seed=3, fonts=opened, shape=LARGE[number % len(LARGE)])
        assert described(again) == described(pages[number])
        assert np.array_equal(again.levels, pages[number].levels)
    other = render(0, seed=4, fonts=opened, shape=LARGE[0])
    assert (other.prompt, other.answer) != (pages[0].prompt, pages[0].answer)


def test_all_tasks_come_with_a_published_prompt_and_their_own_kind_of_answer(pages: list[Page]) -> None:
    assert {page.task for page in pages} == set(LAYOUTS)
    for page in pages:
        if page.task == "fields":
            [(before, after)] = [each for each in FIELDS if page.prompt.startswith(each[0])]
            assert page.prompt.endswith(after)
            keys = [each.strip("'") for each in page.prompt[len(before) : -len(after)].split(",")]
            assert list(json.loads(page.answer)) == keys
            assert all(
                value in "\n".join(line.text for line in page.lines)
                for value in json.loads(page.answer).values()
            )
        else:
            assert page.prompt in PROMPTS[page.task]
        if page.task == "table":
            cells = re.findall("<td>(.*?)</td>", page.answer)
            assert [cell for cell in cells if cell] == [line.text for line in page.lines][
                -len([c for c in cells if c]) :
            ]
        if page.task == "document":
            assert page.answer.startswith(f"# {page.lines[0].text}\n\n")


def test_boxes_of_spotting_are_on_the_page_and_hold_all_ink(
    fonts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Canvas, "rule", lambda *_: None)  # the ink of tables that no line has
    opened = Fonts.open(fonts, held=False)
    for number in range(30):
        page = render(number, seed=5, fonts=opened, shape=(512, 384), shares={"spotting": 1})
        found = re.findall(r"(.*?)\((\d+),(\d+)\),\((\d+),(\d+)\)", page.answer)
        assert [row[0] for row in found] == [line.text for line in page.lines]
        ink = np.abs(page.levels.astype(int) - PAPER) > 110
        for _, *corners in found:
            left, top, right, bottom = map(int, corners)
            assert 0 <= left < right <= 1000
            assert 0 <= top < bottom <= 1000
            x0, x1 = left * 512 // 1000, -(-right * 512 // 1000)
            y0, y1 = top * 384 // 1000, -(-bottom * 384 // 1000)
            assert ink[y0:y1, x0:x1].any()
            ink[max(0, y0 - 2) : y1 + 2, max(0, x0 - 2) : x1 + 2] = False
        assert not ink.any(), f"page {number} has ink outside of its boxes"


def test_what_is_turned_is_where_its_line_says(fonts: Path) -> None:
    canvas = Canvas(400, 300)
    file = Fonts.open(fonts, held=False).latin[0]
    canvas.write("turned 42", 40, 60, file, 24)
    image = np.asarray(canvas.turned(2.5)).astype(int)
    [line] = canvas.lines
    down, across = np.nonzero(image > PAPER + 60)
    left, top, right, bottom = line.box
    assert left - 1 <= across.min()
    assert across.max() <= right + 1
    assert top - 1 <= down.min()
    assert down.max() <= bottom + 1
    assert said("text", canvas) == "turned 42"
    assert said("text", Canvas(10, 10)) == "没有文字"


def test_slots_of_cells_have_the_characters_that_they_lie_in(pages: list[Page]) -> None:
    tokenizer = build()
    pad = tokenizer.token_to_id(PAD)
    assert pad is not None
    for page in pages[:20]:
        found = {(cell, slot): token for cell, slot, token in cells_of([page], pad).tolist()}
        across = page.levels.shape[1] // CELL
        right, count = 0, 0
        for line in page.lines:
            for character, (x, y) in zip(line.text, line.middles, strict=True):
                if character != " ":
                    place = int(y) // CELL * across + int(x) // CELL, int(y) % 32 // 16 * 4 + int(x) % 32 // 8
                    [token] = tokenizer.encode(character).ids
                    right, count = right + (found.get(place) == token), count + 1
        # Of two letters in one slot, narrow ones at small sizes, the later one has it.
        assert right >= 0.9 * count
        assert {slot for _, slot in found} <= set(range(SLOTS))
        blank = sum(token == pad for token in found.values())
        assert 0 < blank <= page.levels.size / (16 * 8) / 5 + 1


def test_where_to_look_is_known_of_all_that_is_said_as_it_stands(pages: list[Page]) -> None:
    tokenizer = build()
    seen = set()
    for page in pages:
        tokens = tokenizer.encode(page.answer).tokens
        singles = {token: character for character in ALPHABET for token in tokenizer.encode(character).tokens}
        sights = sights_of(page)
        said_there = "".join(singles[tokens[token]] for token, _ in sights)
        if page.task != "fields":
            seen.add(page.task)
            assert said_there in "".join(line.text for line in page.lines)
            written = sum(len(line.text) for line in page.lines)
            left_out = {"document": 15, "table": 60}.get(
                page.task, 0
            )  # a page's number; a line above a table
            assert written - left_out <= len(sights) <= written
    assert seen == {"text", "spotting", "table", "document"}
    batch = joined([pages[0], pages[7]], [False, True])
    first = batch.first.tolist()
    assert first[0] == first[1] + 1
    assert batch.ids[0, first[0] - 2 : first[0]].tolist() == [
        tokenizer.token_to_id(IMAGE_BEGIN),
        tokenizer.token_to_id(IMAGE),
    ]


def test_where_to_look_for_fields_is_where_their_names_and_values_stand(fonts: Path) -> None:
    opened, missing, apart = Fonts.open(fonts, held=False), 0, 0
    for number in range(40):
        page = render(number, seed=9, fonts=opened, shape=LARGE[number % 7], shares={"fields": 1})
        across = page.shape[0] // CELL + 1
        squares = dict(sights_of(page))
        at = 1
        for key, value in json.loads(page.answer).items():
            rows = {line.row for line in page.lines if re.match(f"{key} ?[:：]", line.text, re.IGNORECASE)}
            here = [line for line in page.lines if line.row in rows]
            there = [
                (letter.lower(), int(y) // CELL * across + int(x) // CELL)
                for line in here
                for letter, (x, y) in zip(line.text, line.middles, strict=True)
            ]
            named = [(page.answer[token], squares.get(token)) for token in range(at + 1, at + 1 + len(key))]
            start = at + len(key) + 5
            valued = [
                (page.answer[token].lower(), squares.get(token)) for token in range(start, start + len(value))
            ]
            assert "".join(letter for letter, _ in named) == key
            if here:
                assert named == there[: len(key)]
                assert valued == there[len(there) - len(value) :]
            else:
                assert not value
                assert {square for _, square in named} == {None}
            missing, apart = missing + (not here), apart + (len(here) == 2)
            at = start + len(value) + 3
        assert at == len(page.answer) + 1
        assert not set(squares) - {at for at, letter in enumerate(page.answer) if letter not in '{"}'}
    assert missing
    assert apart


def test_batches_follow_their_number_and_how_far_the_training_is(fonts: Path) -> None:
    plan = Plan(seed=1, fonts=fonts, patches=4096, rows=8)
    one, again, later = plan.batch(3, 0.0), plan.batch(3, 0.0), plan.batch(3, 0.9)
    assert all(bool((a == b).all()) for a, b in zip(one, again, strict=True))
    assert tuple(reversed(one.levels.shape[1:])) in SMALL
    assert later.levels[0].numel() > one.levels[0].numel()
    assert one.wanted.shape == one.at.shape
    # What comes behind the tokens that are asked is what is wanted.
    assert one.ids.flatten()[one.at.long() + 1].tolist() == one.wanted.tolist()


def test_colours_are_apart_and_levels_are_between_them(pages: list[Page]) -> None:
    for page in pages:
        assert min(abs(a - b) for a, b in zip(page.paper, page.ink, strict=True)) >= 90
        seen = coloured(page.levels, page.paper, page.ink)
        assert np.array_equal(np.asarray(page.picture()), seen)
    blank = np.full((1, 1), PAPER, np.uint8)
    assert coloured(blank, (1, 2, 3), (200, 200, 200)).ravel().tolist() == [1, 2, 3]


def test_nothing_is_written_that_the_alphabet_lacks() -> None:
    for seed in range(200):
        writer = Writer(Random(seed), chinese=seed % 2 == 0)
        text = writer.piece() + writer.cell() + writer.key() + writer.heading()
        assert not set(text) - set(ALPHABET)


def test_pages_that_are_kept_come_back_as_they_were_drawn_and_worn_alike_every_time(
    fonts: Path, tmp_path: Path
) -> None:
    keep(fonts, tmp_path, 8)
    opened = Fonts.open(fonts, held=True)
    again = list(kept(tmp_path))
    for page, same in zip(kept(tmp_path), again, strict=True):
        plain = render(page.number, seed=HELD_SEED, fonts=opened, shape=page.shape, wear=False)
        assert (page.task, page.prompt, page.answer) == (plain.task, plain.prompt, plain.answer)
        assert (page.paper, page.ink) == (plain.paper, plain.ink)
        assert np.array_equal(page.levels, same.levels)
        assert page.levels.shape == plain.levels.shape
        assert np.abs(page.levels.astype(int) - plain.levels).mean() < 40
    assert [page.shape for page in again] == [LARGE[at * STEP % len(LARGE)] for at in range(8)]
    worn = [page for page in again if (page.levels != PAPER).mean() > 0.5]
    assert 0 < len(worn) < 8


def test_pages_that_ship_are_of_every_task_and_shape() -> None:
    pages = list(kept(Path(__file__).parents[2] / "examples" / "pages" / "held"))
    assert {page.task for page in pages} == set(LAYOUTS)
    assert {page.shape for page in pages} == set(LARGE)
    assert sum(len(page.answer) for page in pages) > 10_000


def test_fonts_that_judge_are_of_packages_that_training_does_not_see(fonts: Path, tmp_path: Path) -> None:
    held, seen = ({face.package for face in FACES if face.held == kind} for kind in (True, False))
    assert held
    assert not held & seen
    assert {face.chinese for face in FACES if face.held} == {True, False}
    assert Fonts.open(fonts, held=True).latin[0].endswith("True-False.ttf")
    with pytest.raises(FileNotFoundError, match=r"run `python -m training\.subset_fonts"):
        Fonts.open(tmp_path, held=True)
