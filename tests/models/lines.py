"""Pictures of single lines, most of them digits, with what they say: drawn, blurred, turned and written to a folder.

The folder is laid out as HuggingFace's imagefolder: pictures and a metadata.csv with the columns file_name and text.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

WORDS = (
    "Invoice",
    "Total",
    "Order",
    "Date",
    "Amount",
    "Customer",
    "Net",
    "Gross",
    "Paid",
    "Due",
    "Page",
    "Rate",
)
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def lines(to: Path, count: int, seed: int = 0) -> list[tuple[Path, str]]:
    """Write `count` pictures and `metadata.csv` into the folder; the pictures with their texts."""
    random = Random(seed)
    to.mkdir(parents=True, exist_ok=True)
    made = []
    for index in range(count):
        text = random.choice(KINDS)(random)
        path = to / f"line-{index:04}.png"
        picture(text, random).save(path)
        made.append((path, text))
    with (to / "metadata.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file_name", "text"])
        writer.writerows((path.name, text) for path, text in made)
    return made


def picture(text: str, random: Random) -> Image.Image:
    """The text in one of many sizes and contrasts, a little turned, blurred and noisy."""
    font = ImageFont.load_default(random.randint(18, 44))
    left, top, right, bottom = font.getbbox(text)
    margin = random.randint(3, 8)
    size = math.ceil(right - left) + 2 * margin, math.ceil(bottom - top) + 2 * margin
    ground, ink = random.randint(190, 255), random.randint(0, 90)
    image = Image.new("L", size, ground)
    ImageDraw.Draw(image).text((margin - left, margin - top), text, ink, font)
    image = image.rotate(random.uniform(-0.8, 0.8), Image.Resampling.BICUBIC, fillcolor=ground)
    image = image.filter(ImageFilter.GaussianBlur(random.uniform(0, 0.9)))
    noise = np.random.default_rng(random.getrandbits(32)).normal(0, random.uniform(0, 8), size[::-1])
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8)).convert("RGB")


def _invoice(random: Random) -> str:
    return f"{random.choice(('INV', 'RE', 'PO', 'No.'))}-{_digits(random, 4)}-{_digits(random, random.randint(4, 7))}"


def _date(random: Random) -> str:
    day, month, year = random.randint(1, 28), random.randint(1, 12), random.randint(1990, 2039)
    return random.choice(
        (
            f"{year}-{month:02}-{day:02}",
            f"{day:02}.{month:02}.{year}",
            f"{month:02}/{day:02}/{year}",
            f"{day}-{MONTHS[month - 1]}-{year}",
        )
    )


def _amount(random: Random) -> str:
    value = random.choice((99, 9_999, 9_999_999)) * random.random()
    return random.choice((f"{value:.2f}", f"{value:,.2f}", f"${value:,.2f}", f"{value:.2f}%"))


def _code(random: Random) -> str:
    letters = "".join(random.choice("ABCDEFGHJKLMNPRSTUVWXYZ") for _ in range(random.randint(1, 3)))
    return f"{letters}{_digits(random, random.randint(5, 9))}"


def _number(random: Random) -> str:
    return _digits(random, random.randint(6, 16))


def _clock(random: Random) -> str:
    return f"{random.randint(0, 23):02}:{random.randint(0, 59):02}:{random.randint(0, 59):02}"


def _worded(random: Random) -> str:
    return f"{random.choice(WORDS)}:{random.choice((_date, _amount, _number, _code))(random)}"


def _digits(random: Random, count: int) -> str:
    return "".join(random.choice("0123456789") for _ in range(count))


KINDS: tuple[Callable[[Random], str], ...] = (_invoice, _date, _amount, _code, _number, _clock, _worded)
