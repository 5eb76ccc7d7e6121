"""What pages say: words, amounts, dates, codes, Chinese; drawn at random, so that a reader has to look."""

from __future__ import annotations

import string
from random import Random

from training.characters import CHINESE, OF_FORMS, PHRASES, PUNCTUATION, SIGNS, WORDS

_CODE = "".join(sorted(set(string.ascii_letters + string.digits) - set("IlOo0")))
"""For codes without a meaning: letters that many fonts draw alike are left out, so that what is asked can be seen."""
_WIDE = frozenset(CHINESE + PUNCTUATION)
_MARKS = "#%&*+-/=@_~^<>[]{}\\`$"
_PLAIN = "#%&*+-/=@_"


class Writer:
    """Texts of one page, in one script, from one stream of chance."""

    def __init__(self, rng: Random, *, chinese: bool) -> None:
        self._rng, self.chinese = rng, chinese

    def piece(self) -> str:
        """One word or what stands for one, without blanks."""
        rng = self._rng
        if self.chinese and rng.random() < 0.75:
            return self._phrase()
        return rng.choices(_PIECES, _WEIGHTS)[0](rng)

    def between(self, before: str, after: str) -> str:
        """What stands between two pieces: nothing between Chinese ones."""
        return "" if before[-1:] in _WIDE or after[:1] in _WIDE else " "

    def cell(self) -> str:
        """A short text for a table or a form, without marks that HTML or JSON would write otherwise."""
        rng = self._rng
        if self.chinese and rng.random() < 0.6:
            return rng.choice(PHRASES)
        text = rng.choices((_number, _amount, _date, _word, _two_words, _code), (4, 4, 2, 3, 2, 1))[0](rng)
        return "".join(mark for mark in text if mark not in "<>&\"'\\") or "0"

    def key(self) -> str:
        """A word that nobody knows as the name of a field."""
        if self.chinese:
            return "".join(self._rng.sample(CHINESE, self._rng.randint(2, 3)))
        return _pseudo(self._rng).lower()

    def heading(self) -> str:
        """A few words for a title."""
        if self.chinese:
            return "".join(self._rng.choice(PHRASES) for _ in range(self._rng.randint(1, 3)))
        return " ".join(self._rng.choice(WORDS).title() for _ in range(self._rng.randint(1, 4)))

    def _phrase(self) -> str:
        rng = self._rng
        if rng.random() < 0.4:
            text = rng.choice(PHRASES)
        else:
            pool = OF_FORMS if rng.random() < 0.25 else CHINESE
            text = "".join(rng.choice(pool) for _ in range(rng.randint(1, 6)))
        return text + (rng.choice(PUNCTUATION) if rng.random() < 0.25 else "")


def _pseudo(rng: Random) -> str:
    """Letters that look like a word."""
    text = "".join(
        rng.choice("bcdfghjkmnpqrstvwxyzl") + rng.choice("aeiouyea") for _ in range(rng.randint(1, 4))
    )
    return text + rng.choice("nstrdkpmxz" if rng.random() < 0.5 else "e")


def _cased(rng: Random, word: str) -> str:
    chance = rng.random()
    return word if chance < 0.6 else word.title() if chance < 0.85 else word.upper()


def _word(rng: Random) -> str:
    return _cased(rng, rng.choice(WORDS) if rng.random() < 0.6 else _pseudo(rng))


def _two_words(rng: Random) -> str:
    return f"{_word(rng)} {_word(rng)}"


def _marked(rng: Random) -> str:
    """A word with the punctuation of a sentence."""
    word = _word(rng)
    chance = rng.random()
    if chance < 0.7:
        return word + rng.choice(".,;:!?.,")
    before, after = rng.choice(("()", '""', "''", "[]", "()"))
    return before + word + after


def _number(rng: Random) -> str:
    return str(rng.randrange(10 ** rng.randint(1, 7)))


def _amount(rng: Random) -> str:
    whole = rng.randrange(10 ** rng.randint(1, 6))
    text = (
        f"{whole:,}.{rng.randrange(100):02d}" if rng.random() < 0.7 else f"{whole}.{rng.randrange(100):02d}"
    )
    chance = rng.random()
    if chance < 0.45:
        return rng.choice("$" + SIGNS[:3]) + text
    return text + ("%" if chance < 0.55 else "") if chance < 0.9 else "-" + text


def _date(rng: Random) -> str:
    year, month, day = rng.randint(1950, 2039), rng.randint(1, 12), rng.randint(1, 28)
    spelled = ("{0}-{1:02d}-{2:02d}", "{2:02d}/{1:02d}/{0}", "{2}.{1}.{0}", "{0}/{1}/{2}")
    return rng.choice(spelled).format(year, month, day)


def _time(rng: Random) -> str:
    return f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"


def _code_of(rng: Random, letters: str) -> str:
    return "".join(rng.choice(letters) for _ in range(rng.randint(2, 9)))


def _code(rng: Random) -> str:
    return _code_of(rng, _CODE)


def _dashed(rng: Random) -> str:
    return "-".join(_code_of(rng, string.digits) for _ in range(rng.randint(2, 3)))


def _symbols(rng: Random) -> str:
    marks = _MARKS if rng.random() < 0.5 else _PLAIN
    return _code_of(rng, _CODE) + rng.choice(marks) + _code_of(rng, _CODE)


def _mail(rng: Random) -> str:
    return f"{_pseudo(rng)}@{_pseudo(rng)}.{rng.choice(('com', 'org', 'net', 'cn'))}"


def _degrees(rng: Random) -> str:
    return f"{rng.randrange(100)}°"


_PIECES = (_word, _marked, _number, _amount, _date, _time, _code, _dashed, _symbols, _mail, _degrees)
_WEIGHTS = (36, 12, 12, 10, 6, 3, 9, 4, 5, 2, 1)
