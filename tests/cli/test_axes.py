from __future__ import annotations

import re

import pytest

from alula.cli.axes import parse_axes, parse_profile, parse_range
from alula.cli.bench import parse_shapes
from alula.core.errors import InputError
from alula.core.profile import Range


def test_axes_are_read_from_their_short_and_long_options() -> None:
    assert parse_axes({"batch": "1:8:64", "length": None}, ["length=2:128:512", "width=7"]) == {
        "batch": Range(1, 8, 64),
        "length": Range(2, 128, 512),
        "width": Range(7, 7, 7),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1:2", "axis 'batch': got '1:2', expected MIN:OPT:MAX"),
        ("a:b:c", "axis 'batch': got 'a:b:c'"),
        ("-1:2:3", "axis 'batch': got '-1:2:3'"),
        ("", "axis 'batch': got ''"),
        ("4:2:8", "axis 'batch': need 1 <= min <= opt <= max, got 4:2:8"),
        ("0:1:2", "axis 'batch': need 1 <= min"),
        ("1:2:\u0663", "axis 'batch': got"),
        ("1:1:2147483648", "axis 'batch': got 2147483648, expected at most 2147483647"),
        ("1:1:" + "9" * 5000, "axis 'batch': got 9+, expected at most 2147483647"),
    ],
)
def test_a_malformed_range_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_range("batch", text)


def test_an_axis_given_twice_or_without_a_name_is_refused() -> None:
    with pytest.raises(InputError, match="axis 'batch' is given twice"):
        parse_axes({"batch": "1:1:1"}, ["batch=1:2:3"])
    with pytest.raises(InputError, match="--axis '1:2:3': expected NAME=MIN:OPT:MAX"):
        parse_axes({}, ["1:2:3"])


@pytest.mark.parametrize(
    "text",
    ["batch=1:1:4,length=1:64:128", "batch=1:1:4, length=1:64:128", "small=batch=1:1:4,length=1:64:128"],
)
def test_a_profile_names_axes_and_may_have_a_name_for_its_reader(text: str) -> None:
    assert parse_profile(text) == {"batch": Range(1, 1, 4), "length": Range(1, 64, 128)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'': expected NAME=MIN:OPT:MAX"),
        ("batch=1:1:1,", "'': expected NAME=MIN:OPT:MAX"),
        ("1:1:1", "'1:1:1': expected NAME=MIN:OPT:MAX"),
        ("batch=1:1:1,length=8:4:2", "axis 'length': need 1 <= min <= opt <= max, got 8:4:2"),
        ("batch=1:1:1,batch=2:2:2", "axis 'batch' is given twice"),
        (
            "a=b=batch=1:1:1",
            "axis 'a': got 'b=batch=1:1:1', expected MIN:OPT:MAX in whole numbers, such as 1:8:64",
        ),
    ],
)
def test_a_profile_that_cannot_be_read_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_profile(text)
    assert str(error.value) == f"--profile {text!r}: {message}"


def test_shapes_are_rows_by_tokens() -> None:
    assert parse_shapes("1x128, 8x64") == ((1, 128), (8, 64))
    assert parse_shapes("1x128,8x128+32") == ((1, 128), (8, 128, 32))
    with pytest.raises(InputError, match="--shapes '8by64': expected ROWSxTOKENS"):
        parse_shapes("1x128,8by64")


@pytest.mark.parametrize(
    "text", ["1x\u00b2", "1x\u0663", "1x-2", "x", "", "1xx2", "8+4", "8x4+", "1x2x3+4", "1x2+3+4"]
)
def test_a_malformed_shape_is_refused_by_name(text: str) -> None:
    with pytest.raises(
        InputError, match=re.escape(f"--shapes '{text}': expected ROWSxTOKENS, such as 1x128, or")
    ):
        parse_shapes(text)


def test_a_shape_larger_than_any_axis_is_refused() -> None:
    with pytest.raises(InputError, match="--shapes '1x99999999999': got 99999999999, expected at most"):
        parse_shapes("1x99999999999")


def test_the_largest_size_of_an_axis_is_read() -> None:
    assert parse_range("batch", "1:1:0002147483647") == Range(1, 1, 2**31 - 1)
