"""Pages of text, drawn, and what can be wrong with them."""

from __future__ import annotations

import random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from alula.documents import Pixels

WORDS = (
    "invoice",
    "total",
    "amount",
    "due",
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "2026",
    "12.50",
)


def sheet(seed: int = 0, letters: int = 20, size: tuple[int, int] = (700, 900)) -> Pixels:
    """A page of lines in the font that comes with Pillow."""
    chance = random.Random(seed)
    picture = Image.new("L", size, chance.choice([255, 245, 235]))
    drawing = ImageDraw.Draw(picture)
    font = ImageFont.load_default(letters)
    for y in range(30, size[1] - 2 * letters, int(letters * chance.choice([1.4, 1.8, 2.4]))):
        line = " ".join(chance.choices(WORDS, k=chance.randint(3, 60 * 8 // letters)))
        drawing.text((40, y), line, font=font, fill=chance.choice([0, 30, 60]))
    return np.repeat(np.asarray(picture)[..., None], 3, axis=2)


def ruled(pixels: Pixels, thick: int = 4, every: int = 60) -> Pixels:
    """With black rules from side to side, so many pixels thick, as forms and tables have them."""
    found = pixels.copy()
    for top in range(10, len(found) - thick, every):
        found[top : top + thick, 20:-20] = 0
    return found


def contents(letters: int, size: tuple[int, int] = (900, 1200), seed: int = 0) -> Pixels:
    """A list of contents: short titles, and dots from each to the number of its page."""
    chance = random.Random(seed)
    picture = Image.new("L", size, 255)
    drawing = ImageDraw.Draw(picture)
    font = ImageFont.load_default(letters)
    for y in range(40, size[1] - 2 * letters, round(letters * 1.6)):
        title, number = chance.choice(WORDS), str(chance.randint(1, 300))
        begin = 40 + drawing.textlength(f"{title} ", font=font)
        end = size[0] - 40 - drawing.textlength("000 ", font=font)
        dots = "." * int((end - begin) / drawing.textlength(".", font=font))
        drawing.text((40, y), title, font=font, fill=0)
        drawing.text((begin, y), dots, font=font, fill=0)
        drawing.text((size[0] - 40, y), number, font=font, fill=0, anchor="ra")
    return np.repeat(np.asarray(picture)[..., None], 3, axis=2)


def blurred(pixels: Pixels, deviation: float) -> Pixels:
    """With a Gaussian of so many pixels."""
    return np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(deviation)))


def noisy(pixels: Pixels, deviation: float, seed: int = 0) -> Pixels:
    """With noise of so many levels."""
    noise = np.random.default_rng(seed).normal(0, deviation, pixels.shape[:2])
    return np.clip(pixels * 0.8 + 20 + noise[..., None], 0, 255).astype(np.uint8)


def specked(pixels: Pixels, share: float, seed: int = 0) -> Pixels:
    """With black and white specks on so many of its pixels."""
    chance = np.random.default_rng(seed).random(pixels.shape[:2])
    found = pixels.copy()
    found[chance < share / 2] = 0
    found[chance > 1 - share / 2] = 255
    return found


def skewed(pixels: Pixels, degrees: float) -> Pixels:
    """Turned so that lines run down to the right by so many degrees."""
    picture = Image.fromarray(pixels).rotate(-degrees, Image.Resampling.BICUBIC, fillcolor=(255, 255, 255))
    return np.asarray(picture)


def darker(pixels: Pixels, share: float) -> Pixels:
    """With so much of its light."""
    return (pixels * share).astype(np.uint8)
