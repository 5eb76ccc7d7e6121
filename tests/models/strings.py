"""Seeded strings of all kinds that tokenizers meet: words, code, emoji, scripts, runs of spaces, control characters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PIECES: Sequence[str] = (
    *("the", "The", "quick", "brown", "fox", "jumps", "don't", "I'LL", "we've", "naïve", "Straße", "OK"),
    *(
        "def f(x):",
        "    return x**2",
        "{'a': [1, 2]}",
        '<p class="x">',
        "#include <io>",
        "a_b.c->d",
        "//",
        "!=",
    ),
    *("🎉", "👩‍👩‍👧", "🇩🇪", "日本語", "北京市", "한국어", "русский", "العربية", "עברית", "ελληνικά", "हिन्दी"),
    *(
        "é",
        "\u0301",
        "ﬁ",
        "Å",
        "\u212b",
        "\u200b",
        "\ufeff",
        "\u00a0",
        "\u3000",
        "\x00",
        "\x07",
        "\x1b",
        "\x7f",
    ),
    *(".", ",", "!", "?", "...", "'", '"', "``", "—", "§", "€", "<0x0A>", "▁", "Ġ", "�", "½", "Ⅷ", "٣"),
)
SPACES: Sequence[str] = (" ", " ", " ", "", "", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "        ")
NUMBERS: Sequence[str] = ("0", "7", "42", "1999", "1234567", "3.14", "1e-6")


def strings(count: int, *, special: Sequence[str] = (), numbers: bool = True, seed: int = 0) -> list[str]:
    """So many strings of up to a dozen pieces, some of them only whitespace."""
    random = np.random.default_rng(seed)
    pieces = [*PIECES, *special, *(NUMBERS if numbers else ())]
    made = []
    for _ in range(count):
        parts = []
        for _ in range(random.integers(0, 12)):
            parts += [pieces[int(random.integers(len(pieces)))], SPACES[int(random.integers(len(SPACES)))]]
        if random.random() < 0.2:
            parts.insert(0, SPACES[int(random.integers(len(SPACES)))])
        made.append("".join(parts))
    return made
