from __future__ import annotations

import pytest

from alula.core.errors import InputError
from alula.core.units import bytes_as_text, parse_bytes, parse_seconds, seconds_as_text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4GiB", 4 << 30),
        ("4 GiB", 4 << 30),
        ("512MiB", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("64KiB", 65_536),
        ("2GB", 2_000_000_000),
        ("300MB", 300_000_000),
        ("7KB", 7_000),
        ("12345B", 12_345),
    ],
)
def test_memory_is_read_in_powers_of_two_and_of_ten(text: str, count: int) -> None:
    assert parse_bytes("--workspace", text) == count
    assert parse_bytes("--workspace", bytes_as_text(count)) == count


@pytest.mark.parametrize(("text", "seconds"), [("20m", 1200), ("90s", 90), ("1.5h", 5400), ("0.25s", 0.25)])
def test_time_is_read_in_seconds_minutes_and_hours(text: str, seconds: float) -> None:
    assert parse_seconds("--time-limit", text) == seconds
    assert parse_seconds("--time-limit", seconds_as_text(seconds)) == seconds


def test_what_is_written_is_short() -> None:
    assert (bytes_as_text(4 << 30), bytes_as_text(1500 << 20), bytes_as_text(10**9)) == (
        "4GiB",
        "1500MiB",
        "1GB",
    )
    assert (seconds_as_text(1200), seconds_as_text(90), seconds_as_text(7200.0)) == ("20m", "90s", "2h")


@pytest.mark.parametrize(
    "text", ["4", "", "GiB", "4 parsecs", "4gib", "-4GiB", "4GiB ram", "4e9B", "\u0664GiB", "1" * 99 + "B"]
)
def test_memory_that_cannot_be_read_is_refused_by_name(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_bytes("--workspace", text)
    assert str(error.value) == (
        f"--workspace {text!r}: expected a number with one of GiB, MiB, KiB, GB, MB, KB, B, such as 4GiB"
    )


def test_no_memory_and_no_time_are_refused() -> None:
    with pytest.raises(InputError, match="--workspace '0GiB': expected more than nothing"):
        parse_bytes("--workspace", "0GiB")
    with pytest.raises(InputError, match=r"--workspace '999999999999GiB': .* at most 9223372036854775807B"):
        parse_bytes("--workspace", "999999999999GiB")
    with pytest.raises(InputError, match=r"--time-limit '0.0s': expected more than nothing .* such as 20m"):
        parse_seconds("--time-limit", "0.0s")
    # threading's clock ends there.
    with pytest.raises(InputError, match=r"--time-limit '999999999999h': .* at most 2147483647s"):
        parse_seconds("--time-limit", "999999999999h")
    with pytest.raises(
        InputError, match="--time-limit '20': expected a number with one of h, m, s, such as 20m"
    ):
        parse_seconds("--time-limit", "20")
