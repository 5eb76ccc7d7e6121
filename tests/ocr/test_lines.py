"""What is decided of lines before they are read, and the order that they are read in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.codecs import Raster, blue_first
from alula.ocr.lines import (
    Looking,
    along,
    batches,
    begun,
    closer,
    cut_above,
    doubtful,
    looked_at,
    piece_end,
    reading_width,
    run_down,
    size,
    turned_back,
    upside_down,
    with_ends,
)
from alula.ocr.order import Corners, rows_in_order, skew


def box(left: float, top: float, right: float, bottom: float) -> Corners:
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)], np.float64)


def turned(corners: Corners, degrees: float) -> Corners:
    angle = np.radians(degrees)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return np.asarray(corners @ turn, np.float64)


def test_a_page_is_looked_at_in_steps_with_its_longer_side_at_what_is_asked() -> None:
    assert looked_at(1240, 1754, 736) == (512, 736)
    assert looked_at(3507, 2481, 736) == (736, 512)
    assert looked_at(5, 20_000, 736) == (32, 736)


def test_a_page_is_looked_at_again_only_where_its_text_is_small() -> None:
    looking = Looking(side=736, low=7, good=11, most=1600)
    assert closer([5.0, 5.5, 6.0], looking) == round(736 * 11 / 5.5)
    assert closer([2.0], looking) == 1600
    assert closer([8.0, 30.0], looking) is None
    assert closer([], looking, 700) is None
    assert closer([], looking, 1200) == 1200
    assert closer([], looking, 5000) == 1600


def test_most_of_the_ink_says_whether_a_page_lies_on_its_side() -> None:
    level, tall = box(0, 0, 300, 20), box(0, 0, 20, 400)
    assert run_down([level, tall])
    assert not run_down([level, level, tall])
    assert not run_down([])


def test_a_tall_box_is_read_downwards_and_others_as_they_are() -> None:
    tall = along(box(10, 0, 30, 100))
    assert tall[0].tolist() == [30, 0]
    assert size(tall) == (100, 20)
    assert along(box(0, 0, 100, 20)).tolist() == box(0, 0, 100, 20).tolist()


def test_the_beginning_and_the_ends_of_a_line_are_counted_in_its_heights() -> None:
    line = box(100, 10, 500, 30)
    assert begun(line, 4).tolist() == box(100, 10, 180, 30).tolist()
    assert begun(line, 40).tolist() == line.tolist()
    assert with_ends(line, 0.5).tolist() == box(90, 10, 510, 30).tolist()
    assert upside_down(line)[0].tolist() == [500, 30]


@given(st.integers(0, 3), st.integers(40, 90), st.integers(40, 90))
def test_boxes_of_a_turned_page_come_back_to_where_they_were(turns: int, width: int, height: int) -> None:
    page = np.zeros((height, width, 3), np.uint8)
    page[10:14, 20:33] = 255
    found = np.argwhere(np.rot90(page, turns)[:, :, 0])
    (top, left), (bottom, right) = found.min(axis=0), found.max(axis=0) + 1
    back = turned_back(box(left, top, right, bottom), turns, width, height)
    assert [*back.min(axis=0), *back.max(axis=0)] == [20, 10, 33, 14]


def test_a_line_is_read_as_wide_as_it_is_in_proportion() -> None:
    assert reading_width(box(0, 0, 400, 20), 48, 1.0, 3200) == 960
    assert reading_width(box(0, 0, 400, 20), 48, 0.5, 3200) == 480
    assert reading_width(box(0, 0, 400, 20), 48, 1.0, 500) == 500
    assert reading_width(box(0, 0, 1, 20), 48, 1.0, 3200) == 24


@given(st.lists(st.integers(24, 3200), max_size=60), st.integers(1, 8))
def test_batches_hold_every_line_once_and_waste_little(widths: list[int], rows: int) -> None:
    made = list(batches(widths, cells=6144, rows=rows, waste=0.1))
    assert sorted(at for batch in made for at in batch) == list(range(len(widths)))
    for batch in made:
        widest = max(widths[at] for at in batch) * len(batch)
        assert len(batch) == 1 or (len(batch) <= rows and widest <= 6144)
        assert widest - sum(widths[at] for at in batch) <= 0.1 * widest


def test_rows_are_read_from_the_top_and_pieces_of_one_from_the_left() -> None:
    boxes = [box(300, 102, 400, 122), box(0, 50, 200, 70), box(0, 100, 250, 120), box(0, 0, 500, 20)]
    assert rows_in_order(boxes) == [[3], [1], [2, 0]]
    assert rows_in_order([]) == []


@pytest.mark.parametrize("degrees", [-4.0, 3.0])
def test_rows_of_a_tilted_page_are_those_of_the_level_one(degrees: float) -> None:
    boxes = [box(x, y, x + 380, y + 20) for y in range(0, 300, 30) for x in (0, 400)]
    assert rows_in_order([turned(each, degrees) for each in boxes]) == rows_in_order(boxes)
    assert np.degrees(skew([turned(each, degrees) for each in boxes])) == pytest.approx(degrees)


def columns(rows: int, widths: tuple[float, float]) -> list[Corners]:
    """Two columns side by side, drawn row by row, lines filled by so much."""
    lefts = (0, 600)
    return [
        box(left, 30 * row, left + 500 * share, 30 * row + 20)
        for row in range(rows)
        for left, share in zip(lefts, widths, strict=True)
    ]


def test_two_columns_of_text_are_read_one_after_the_other_below_their_headline() -> None:
    boxes = [*columns(5, (1.0, 0.95)), box(200, -60, 900, -30), box(0, 200, 1100, 220)]
    order = [at for row in rows_in_order(boxes) for at in row]
    assert order == [10, 0, 2, 4, 6, 8, 1, 3, 5, 7, 9, 11]


def test_a_table_is_read_row_by_row() -> None:
    boxes = [
        each
        for row in range(6)
        for each in (box(0, 30 * row, 300, 30 * row + 20), box(900, 30 * row, 960 + 10 * row, 30 * row + 20))
    ]
    boxes[1] = box(600, 0, 1100, 20)
    assert rows_in_order(boxes) == [[2 * row, 2 * row + 1] for row in range(6)]


def test_a_form_is_read_row_by_row() -> None:
    """Its names were read first, and then what is filled in: on a narrow page both are a fifth as wide as all."""
    widths = [(80, 125), (65, 140), (82, 165), (55, 85), (66, 70)]
    boxes = [box(150, -90, 340, -60)]
    for row, (name, value) in enumerate(widths):
        boxes += [box(0, 80 * row, name, 80 * row + 24), box(162, 80 * row - 3, 162 + value, 80 * row + 21)]
    assert rows_in_order(boxes) == [[0], *([2 * row + 1, 2 * row + 2] for row in range(5))]


def test_three_columns_are_read_from_the_left() -> None:
    boxes = [box(x, 30 * row, x + 300, 30 * row + 20) for row in range(4) for x in (0, 340, 680)]
    assert [at for row in rows_in_order(boxes) for at in row] == [
        *range(0, 12, 3),
        *range(1, 12, 3),
        *range(2, 12, 3),
    ]


def test_a_line_at_an_angle_comes_out_level_and_what_is_beyond_the_page_white() -> None:
    page = np.full((200, 300, 3), 255, np.uint8)
    page[80:120, 50:250] = (200, 100, 0)
    page[80:120, 50:90] = 0
    raster = Raster(page)
    level = raster.line(box(50, 80, 250, 120), 100, 20)
    assert level.shape == (20, 100, 3)
    assert (level[:, :18] == 0).all()
    assert (level[2:-2, 24:] == (200, 100, 0)).all()
    other = raster.line(upside_down(box(50, 80, 250, 120)), 100, 20)
    assert (other[:, -18:] == 0).all()
    assert (raster.line(box(260, 80, 360, 120), 100, 20) == 255).all()


def test_thin_strokes_survive_when_a_line_is_made_much_smaller() -> None:
    page = np.full((480, 4000, 3), 255, np.uint8)
    page[:, ::40] = 0
    small = Raster(page).line(box(0, 0, 4000, 480), 400, 48)
    assert (small[:, ::4] < 240).all()
    assert small.mean() == pytest.approx(page.mean(), abs=2)


def test_pixels_are_blue_first_from_minus_one_to_one() -> None:
    pixels = blue_first(np.array([[[255, 0, 51]]], np.uint8))
    assert pixels[:, 0, 0].tolist() == pytest.approx([-0.6, -1.0, 1.0])


def test_a_long_page_is_cut_between_lines() -> None:
    assert piece_end(0, 900, 1800, 736) == 1800
    assert piece_end(0, 900, 5000, 736) == 1350
    assert piece_end(3400, 900, 5000, 736) == 5000
    assert piece_end(0, 20, 5000, 736) == 736, "a narrow page is not cut into hundreds"
    assert piece_end(4200, 20, 5000, 736) == 5000

    def line(top: float, bottom: float) -> Corners:
        return np.array([[10, top], [800, top + 2], [800, bottom], [10, bottom - 2]])

    assert cut_above([], 1000) == 950
    assert cut_above([line(100, 120), line(930, 945)], 1000) == 950
    assert cut_above([line(930, 960)], 1000) == 929
    # What is beside the one that was cut through, and reaches higher, goes with it.
    assert cut_above([line(930, 960), line(915, 935)], 1000) == 914
    assert cut_above([line(100, 1000)], 1000) == 1000, "nothing to cut between: the edge it is"


@pytest.mark.parametrize(
    ("score", "characters", "width", "again"),
    [
        (0.96, 40, 900, False),
        (0.94, 40, 900, True),
        (0.98, 100, 900, True),
        (0.995, 100, 900, False),
        (0.5, 0, 32, True),
    ],
)
def test_lines_that_were_read_with_doubt_or_in_little_room_are_read_again(
    score: float, characters: int, width: int, again: bool
) -> None:
    """Of nine pixels a letter, `spell` came out as `spel` with a score of 0.98."""
    assert doubtful(score, characters, width) is again
