from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from alula.generate import Answer, Detokenizer, Stopping, StopStrings

END = 0x110000


def by_bytes(tokens: Sequence[int]) -> str:
    """A tokenizer of single bytes; what is no byte has no text."""
    return bytes(token for token in tokens if token < 256).decode("utf-8", errors="replace")


def by_characters(tokens: Sequence[int]) -> str:
    """A tokenizer of single characters; what is no character has no text."""
    return "".join(chr(token) for token in tokens if token < END)


def tokenizer(tokens: dict[str, int], decoder: Any) -> Callable[[Sequence[int]], str]:
    made = Tokenizer(models.BPE(vocab=tokens, merges=[], byte_fallback=True))
    made.decoder = decoder
    return lambda ids: str(made.decode(list(ids), skip_special_tokens=True))


def byte_level() -> tuple[dict[str, int], Callable[[Sequence[int]], str]]:
    """As GPT-2, Qwen and LLaMA 3 write bytes, one token each."""
    alphabet = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    return alphabet, tokenizer(alphabet, decoders.ByteLevel())


def byte_fallback() -> tuple[dict[str, int], Callable[[Sequence[int]], str]]:
    """As LLaMA 2 and T5-like vocabularies do: words with a mark for the space, bytes for what they lack."""
    tokens = {f"<0x{byte:02X}>": byte for byte in range(256)}
    tokens |= {"▁Hello": 256, "▁": 257, "world": 258, "▁a": 259}
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return tokens, tokenizer(tokens, decoders.Sequence(steps))


def streamed(detokenizer: Detokenizer, tokens: Sequence[int]) -> list[str]:
    return [*(detokenizer.push(token) for token in tokens), detokenizer.finish()]


@given(text=st.text())
@example(text="Grüße, 世界 👩‍👩‍👧‍👦 😀")
@example(text="a real \N{REPLACEMENT CHARACTER} and \N{REPLACEMENT CHARACTER}")
def test_text_comes_in_whole_characters_and_nothing_is_lost(text: str) -> None:
    pieces = streamed(Detokenizer(by_bytes), text.encode())
    assert "".join(pieces) == text
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@given(text=st.text(), special=st.lists(st.integers(0, 40), max_size=5))
def test_tokens_without_text_change_nothing(text: str, special: list[int]) -> None:
    tokens = list(text.encode())
    for place in special:
        tokens.insert(place, END)
    assert "".join(streamed(Detokenizer(by_bytes), tokens)) == text


def test_a_long_run_of_tokens_without_text_does_not_lose_the_words_before_it() -> None:
    """The first word of a text loses its space; a word after 30 special tokens is not the first."""
    _, decode = byte_fallback()
    assert "".join(streamed(Detokenizer(skipping(decode)), [256, *[END] * 30, 256])) == "Hello Hello"


def skipping(decode: Callable[[Sequence[int]], str]) -> Callable[[Sequence[int]], str]:
    return lambda tokens: decode([token for token in tokens if token < END])


@given(text=st.text())
@example(text="日本語 😀 naïve")
def test_a_byte_level_tokenizer_streams_as_it_decodes(text: str) -> None:
    alphabet, decode = byte_level()
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    symbols = "".join(piece for piece, _ in plain.pre_tokenize_str(text))
    tokens = [alphabet[symbol] for symbol in symbols]
    assert "".join(streamed(Detokenizer(decode), tokens)) == decode(tokens) == text


WORDS = st.sampled_from([[256], [258], [259], list("é".encode()), list("世".encode()), list("😀".encode())])


@given(words=st.lists(WORDS, max_size=12))
@example(words=[list("😀".encode()), list("世".encode()), [256], [256]])
def test_spaces_and_byte_fallback_stream_as_they_decode(words: list[list[int]]) -> None:
    _, decode = byte_fallback()
    tokens = [token for word in words for token in word]
    pieces = streamed(Detokenizer(decode), tokens)
    assert "".join(pieces) == decode(tokens)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@given(tokens=st.lists(st.integers(0, 256).map(lambda token: END if token == 256 else token), max_size=60))
@example(tokens=[0xFF] * 50)
@example(tokens=[0xFF] * 8 + list("é".encode()))
@example(tokens=[0xC3] * 30 + [0xA9])
@example(tokens=[0xF0, 0x9F, 0x98] * 20)
def test_a_few_tokens_are_decoded_at_a_time_whatever_comes(tokens: list[int]) -> None:
    windows: list[int] = []

    def decode(window: Sequence[int]) -> str:
        windows.append(len(window))
        return by_bytes(window)

    text = "".join(streamed(Detokenizer(decode), tokens))
    assert max(windows, default=0) <= 18
    assert len(windows) <= 3 * len(tokens) + 2
    assert text == by_bytes(tokens)  # garbage too, where bytes decode one by one


def test_a_character_that_the_end_cuts_shows_as_cut() -> None:
    detokenizer = Detokenizer(by_bytes)
    cut = "😀".encode()[:2]
    assert [detokenizer.push(token) for token in cut] == ["", ""]
    assert detokenizer.finish() == "\N{REPLACEMENT CHARACTER}"


def first_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The same said slowly: the text before the stop that is complete first, the longest of those."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


LETTERS = st.text(alphabet="ab", min_size=1, max_size=5)


@given(pieces=st.lists(st.text(alphabet="abc", max_size=6), max_size=8), stops=st.lists(LETTERS, max_size=4))
@example(pieces=["aaab"], stops=["aab"])
@example(pieces=["aabaaab", "aaac"], stops=["aabaaac"])
@example(pieces=["a", "b"], stops=["b", "ab"])
@example(pieces=["a", "b"], stops=["ab", "b"])
def test_a_stop_string_is_cut_off_however_the_text_is_cut(pieces: list[str], stops: list[str]) -> None:
    scanner = StopStrings(stops)
    sent = ""
    whole = ""
    for piece in pieces:
        whole += piece
        sent += scanner.push(piece)
        before, found = first_stop(whole, stops)
        assert scanner.found == found
        assert before.startswith(sent)
        if found is None:  # only what may become a stop string is held back
            held = whole[len(sent) :]
            assert not held or any(stop.startswith(held) and stop != held for stop in stops)
    assert (sent + scanner.finish(), scanner.found) == first_stop(whole, stops)


class Watched(str):
    """A stop string that counts how often one of its characters is read."""

    __slots__ = ("reads",)
    reads: int

    def __getitem__(self, index: Any) -> str:
        self.reads = getattr(self, "reads", 0) + 1
        return str.__getitem__(self, index)


def test_a_hundred_thousand_equal_letters_are_looked_at_a_few_times_each() -> None:
    stop = Watched("a" * 500 + "b")
    assert StopStrings([stop]).push("a" * 100_000) == "a" * 99_500
    assert 100_000 < stop.reads < 400_000


def answer(text: str, **asked: Any) -> tuple[str, Answer]:
    """The text sent for an answer whose model says this, one character a token, `$` the end."""
    made = Answer(Stopping(**{"max_tokens": 99, "end_tokens": (ord("$"),), **asked}), by_characters)
    sent = ""
    for character in text:
        sent += made.push(ord(character))
        if made.ending:
            break
    return sent, made


def test_an_end_token_ends_an_answer_and_has_no_text() -> None:
    sent, made = answer("abc$def")
    assert (sent, made.ending, made.stopped_by, len(made.tokens)) == ("abc", "stop", ord("$"), 4)


@pytest.mark.parametrize("end", ["$", "#"])
def test_any_of_several_end_tokens_ends_it(end: str) -> None:
    sent, made = answer(f"ab{end}c", end_tokens=(ord("$"), ord("#")))
    assert (sent, made.ending, made.stopped_by) == ("ab", "stop", ord(end))


@pytest.mark.parametrize(("most", "sent"), [(1, "a"), (3, "abc"), (6, "abcdef")])
def test_max_tokens_ends_it_by_length(most: int, sent: str) -> None:
    assert answer("abcdefgh", max_tokens=most)[0] == sent
    assert answer("abcdefgh", max_tokens=most)[1].ending == "length"


def test_an_answer_goes_on_after_its_first_token() -> None:
    """xberg-io/xberg#1207: answers ended after a token, and a test of one word did not see it."""
    sent, made = answer("ab")
    assert (sent, made.ending, made.tokens) == ("ab", None, [ord("a"), ord("b")])


def test_an_end_token_in_the_last_place_is_a_stop() -> None:
    assert answer("ab$", max_tokens=3)[1].ending == "stop"


def test_a_stop_string_over_several_tokens_is_held_back_and_cut_off() -> None:
    made = Answer(Stopping(max_tokens=99, stop=("END",)), by_characters)
    assert [made.push(ord(character)) for character in "a ENEND"] == ["a", " ", "", "", "EN", "", ""]
    assert (made.ending, made.stopped_by) == ("stop", "END")


@pytest.mark.parametrize(
    ("text", "most", "sent", "ending"),
    [
        ("aEN", 3, "aEN", "length"),  # it did not become one
        ("aEN$", 9, "aEN", "stop"),
        ("aE\N{REPLACEMENT CHARACTER}$", 9, "aE\N{REPLACEMENT CHARACTER}", "stop"),
        ("aEND", 4, "a", "stop"),  # complete with the last token allowed
    ],
)
def test_what_was_held_back_comes_with_the_end(text: str, most: int, sent: str, ending: str) -> None:
    got, made = answer(text, max_tokens=most, stop=("END",))
    assert (got, made.ending) == (sent, ending)


def test_a_stop_string_that_only_the_end_lets_out_counts() -> None:
    """A real U+FFFD waits like an open character, and the stop string before it with it."""
    made = Answer(Stopping(max_tokens=2, stop=("b\N{REPLACEMENT CHARACTER}",)), by_characters)
    assert made.push(ord("b")) + made.push(0xFFFD) == ""
    assert (made.ending, made.stopped_by) == ("stop", "b\N{REPLACEMENT CHARACTER}")


def test_before_the_minimum_ends_are_banned_and_stop_strings_are_text() -> None:
    made = Answer(Stopping(max_tokens=9, min_tokens=2, end_tokens=(7, ord("$")), stop=("b",)), by_characters)
    steps = [(made.banned, made.push(ord(character)), made.ending) for character in "b$b"]
    assert steps == [
        ((7, ord("$")), "b", None),
        ((7, ord("$")), "$", None),  # whoever chose it all the same gets no end
        ((), "", "stop"),
    ]


def test_an_answer_that_is_over_takes_no_more() -> None:
    _, made = answer("$")
    with pytest.raises(AssertionError, match="a token for an answer that ended by stop"):
        made.push(1)
