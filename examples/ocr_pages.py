"""Pages that say what is on them: A4, English and Chinese lines in several fonts, clean or as scanners leave them.

Same seed, fonts and Pillow, same page. Fonts are looked for by file name in the folders given; Debian has them in
fonts-dejavu-core, fonts-liberation and fonts-noto-cjk.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

LATIN = (
    *("DejaVuSans.ttf", "DejaVuSerif.ttf", "DejaVuSansMono.ttf", "DejaVuSans-Bold.ttf"),
    *("LiberationSans-Regular.ttf", "LiberationSerif-Regular.ttf", "LiberationMono-Regular.ttf"),
    *("LiberationSerif-Italic.ttf", "LiberationSans-Bold.ttf"),
)
CHINESE = ("NotoSansCJK-Regular.ttc", "NotoSerifCJK-Regular.ttc")
_SIMPLIFIED = 2
"""Which of a collection's fonts draws simplified characters."""

KINDS = ("clean", "noise", "grain", "blur", "small", "large", "tilted", "columns")
"""What befalls a page: nothing; noise of 8 levels of 255; of 20; out of focus; 100 dpi; 300 dpi; turned by up to two
degrees; nothing, but it has two columns."""

_POINTS = (9, 10, 11, 12, 14, 18)
_A4_INCHES = (8.27, 11.69)
_WORDS = """  # noqa: SIM905
    the of and to in is that for with as was on are be this have from or one had by word but not what all
    were when your can said there use an each which she do how their if will up other about out many then
    them these so some her would make like him into time has look two more write go see number no way
    could people my than first water been call who oil its now find long down day did get come made may
    part over new sound take only little work know place year live me back give most very after thing our
    just name good sentence man think say great where help through much before line right too mean old any
    same tell boy follow came want show also around form three small set put end does another well large
    must big even such because turn here why ask went men read need land different home us move try kind
    hand picture again change off play spell air away animal house point page letter mother answer found
    study still learn should world high every near add food between own below country plant last school
    invoice payment quarter shipping balance customer quantity discount warehouse delivery agreement
    signature notice
""".split()  # noqa: SIM905 - a list of them is a page
_PHRASES = (
    *("今天的天气很好我们一起去公园散步", "请在收到货物后七天内付款", "北京市朝阳区建国路八十八号"),
    *("合同自双方签字之日起生效", "如有问题请联系客户服务中心", "本季度的销售额比去年同期增长"),
    *("会议将于星期三下午两点开始", "请把文件发送给财务部门审核", "所有产品均享受一年保修服务"),
    *("学习一门新的语言需要时间和耐心", "图书馆每天早上九点开门", "这家公司成立于一九九八年"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A line as it stands on the page: its text and left, top, right and bottom in pixels before any turning."""

    text: str
    box: tuple[int, int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class TruePage:
    """A page and what is written there, in reading order."""

    name: str
    image: Image.Image
    lines: tuple[Written, ...]

    @property
    def text(self) -> str:
        """All of it, a line a line."""
        return "\n".join(line.text for line in self.lines)


class Fonts:
    """Font files by name, opened once in each size."""

    def __init__(self, folders: Sequence[Path]) -> None:
        files = {file.name: file for folder in folders for file in sorted(folder.rglob("*.tt[fc]"))}
        self._files = files
        self.latin = tuple(name for name in LATIN if name in files)
        self.chinese = tuple(name for name in CHINESE if name in files)
        if missing := sorted({*LATIN, *CHINESE} - set(files)):
            raise FileNotFoundError(f"fonts not in {[*map(str, folders)]}: {', '.join(missing)}")
        self._opened: dict[tuple[str, int], ImageFont.FreeTypeFont] = {}

    def of(self, name: str, pixels: int) -> ImageFont.FreeTypeFont:
        """A font in a size."""
        index = _SIMPLIFIED if name in CHINESE else 0
        if (name, pixels) not in self._opened:
            self._opened[name, pixels] = ImageFont.truetype(str(self._files[name]), pixels, index=index)
        return self._opened[name, pixels]


def draw(kind: str, seed: int, fonts: Fonts) -> TruePage:
    """One page of a kind; at 150 or 200 dpi unless the kind says otherwise."""
    rng = np.random.default_rng([KINDS.index(kind), seed])
    dpi = {"small": 100, "large": 300}.get(kind) or int(rng.choice([150, 200]))
    width, height = (round(side * dpi) for side in _A4_INCHES)
    image = Image.new("L", (width, height), 255)
    margin = int(dpi * rng.uniform(0.5, 0.9))
    gap = dpi // 3
    if kind == "columns":
        middle = width // 2
        spans = [(margin, middle - gap // 2), (middle + gap // 2, width - margin)]
    else:
        spans = [(margin, width - margin)]
    drawing = ImageDraw.Draw(image)
    lines = [line for span in spans for line in _column(rng, drawing, fonts, dpi, span, height - margin)]
    return TruePage(name=f"{kind}-{seed}", image=_worn(rng, image, kind), lines=tuple(lines))


def characters(text: str) -> str:
    """What is compared: letters of one width, and no spaces, which printed Chinese has none of."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def _column(  # noqa: PLR0913, PLR0917 - a column is where it is
    rng: np.random.Generator,
    drawing: ImageDraw.ImageDraw,
    fonts: Fonts,
    dpi: int,
    span: tuple[int, int],
    bottom: int,
) -> Iterator[Written]:
    """Paragraphs of a font and a size each, from the top down."""
    left, right = span
    top = int(dpi * 0.6)
    while True:
        chinese = rng.random() < 0.35
        name = str(rng.choice(fonts.chinese if chinese else fonts.latin))
        size = round(int(rng.choice(_POINTS)) * dpi / 72)
        font, leading = fonts.of(name, size), round(size * rng.uniform(1.35, 1.7))
        ink = int(rng.integers(0, 70))
        for _ in range(int(rng.integers(2, 7))):
            share = rng.uniform(0.3, 1.0) if rng.random() < 0.3 else 1.0
            text = _fitted(rng, font, (right - left) * share, chinese=chinese)
            if top + leading > bottom:
                return
            if text:
                drawing.text((left, top), text, font=font, fill=ink)
                box = drawing.textbbox((left, top), text, font=font)
                yield Written(text=text, box=(int(box[0]), int(box[1]), int(box[2]), int(box[3])))
            top += leading
        top += round(size * rng.uniform(0.5, 1.2))


def _fitted(rng: np.random.Generator, font: ImageFont.FreeTypeFont, width: float, *, chinese: bool) -> str:
    """As many pieces as fit."""
    text, glue = "", "" if chinese else " "
    while True:
        piece = _chinese(rng) if chinese else _latin(rng)
        longer = f"{text}{glue if text else ''}{piece}"
        if font.getlength(longer) > width:
            return text
        text = longer


def _latin(rng: np.random.Generator) -> str:
    """A word, sometimes with a capital or a mark behind it, or a number, an amount, a date, an address."""
    word, other = (str(rng.choice(_WORDS)) for _ in range(2))
    number = int(rng.integers(1, 100_000))
    date = f"{rng.integers(1990, 2030)}-{rng.integers(1, 13):02}-{rng.integers(1, 29):02}"
    rare = (
        f"{number}",
        f"${number / 100:,.2f}",
        date,
        f"{word}@{other}.com",
        f"({word})",
        f"No.{number}",
        f"{number % 100}%",
    )
    if rng.random() < 0.14:
        return str(rng.choice(rare))
    word = word.capitalize() if rng.random() < 0.15 else word
    return word + (str(rng.choice([",", ".", ";", ":", "?", "!"])) if rng.random() < 0.12 else "")


def _chinese(rng: np.random.Generator) -> str:
    """A phrase; characters of the first plane of GB 2312, the 3755 most used, at random; a number."""
    choice = rng.random()
    if choice < 0.6:
        return str(rng.choice(_PHRASES)) + str(rng.choice([*"\uff0c\u3002\uff1b"]))
    if choice < 0.9:
        codes = ((int(rng.integers(0xB0, 0xD7)), int(rng.integers(0xA1, 0xFF))) for _ in range(6))
        return b"".join(bytes(code) for code in codes).decode("gb2312")
    return f"{rng.integers(1, 100_000)}元"


def _worn(rng: np.random.Generator, image: Image.Image, kind: str) -> Image.Image:
    """What a printer and a scanner make of it."""
    if kind == "blur":
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(1.0, 1.6)))
    if kind == "tilted":
        angle = rng.uniform(0.5, 2.0) * rng.choice([-1, 1])
        image = image.rotate(angle, Image.Resampling.BICUBIC, fillcolor=255)
    if kind in {"noise", "grain"}:
        noise = rng.normal(scale=8 if kind == "noise" else 20, size=(image.height, image.width))
        image = Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))
    return image.convert("RGB")
