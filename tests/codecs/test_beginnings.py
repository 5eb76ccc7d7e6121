"""Of a long text only so much is read as tells its first tokens, and they are those of the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Encoding, Tokenizer, models, pre_tokenizers, processors

from alula.codecs import Row, TextCodec
from alula.codecs.beginnings import LEAST, MARGIN, TWO_LONG, lengths_to_read, settled, suffices
from alula.core.errors import InputError
from alula.core.model import ModelSpec, Part
from alula.core.tensor import TensorSpec

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "hello", "world"]

LONG = st.lists(st.sampled_from(["a ", "hello ", "b\n", "     ", "world", "🦜 "]), min_size=1).map(
    lambda words: "".join(words) * (3 * LEAST // len("".join(words)))
)
SHORT = st.sampled_from(["", "a", "a b hello", "a " * 40])


class Watched(TextCodec):
    """A codec that counts the characters that its tokenizer is given."""

    read = 0
    whole = False

    def _beginning(self, *texts: str) -> tuple[Encoding, bool]:
        return (self._encoding(*texts), True) if self.whole else super()._beginning(*texts)

    def _encoding(self, first: str, second: str | None = None) -> Encoding:
        self.read += len(first) + len(second or "")
        return super()._encoding(first, second)


def watched(max_length: int = 16, *, whole: bool = False, left: bool = False) -> Watched:
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    ids = TensorSpec(name="input_ids", dtype="int64", shape=("batch", "length"))
    spec = ModelSpec(
        name="tiny",
        digest="0",
        revision="main",
        architecture="BertModel",
        family="bert",
        task="embeddings",
        parts=(Part(name="encoder", inputs=(ids,), outputs=()),),
        max_length=max_length,
        vocab_size=8,
        pad_id=0,
    )
    made = Watched(tokenizer, spec, left=left)
    made.whole = whole
    return made


def cut(row: Row) -> Row:
    return replace(row, given=0)


@given(LONG)
def test_a_long_text_gives_the_row_that_it_gives_when_it_is_read_whole(text: str) -> None:
    assert cut(watched().encode(text)) == cut(watched(whole=True).encode(text))


@given(LONG, st.one_of(SHORT, LONG), st.booleans(), st.sampled_from([16, 17]))
def test_pairs_are_cut_as_when_they_are_read_whole(first: str, second: str, turn: bool, limit: int) -> None:
    pair = (second, first) if turn else (first, second)
    assert cut(watched(limit).encode_pair(*pair)) == cut(watched(limit, whole=True).encode_pair(*pair))


@pytest.mark.parametrize("text", ["a " * 1_000_000, "hello\n\n" * 200_000])
def test_of_megabytes_some_thousand_characters_are_read(text: str) -> None:
    one = watched()
    assert one.encode(text).truncated
    assert one.read <= LEAST
    both = watched()
    both.encode_pair(text, text)
    assert both.read < 6 * TWO_LONG
    beside = watched()
    beside.encode_pair("a b", text)
    assert beside.read <= LEAST + 3


def test_a_text_that_is_cut_on_the_left_is_read_whole() -> None:
    assert watched(left=True).encode("b " + "a " * 9_000 + "hello").ids[-2:] == (6, 3)


def test_a_long_text_is_refused_where_nothing_is_to_be_cut() -> None:
    one = watched()
    with pytest.raises(InputError, match="tokens and more; the model takes 16"):
        one.encode("a " * 100_000, truncate=False)
    assert one.read <= LEAST


def test_spaces_have_no_tokens_so_what_follows_them_is_looked_for() -> None:
    assert watched().encode(" " * 5 * LEAST + "hello world").ids == (2, 6, 7, 3)


def test_a_long_prompt_is_refused_before_it_is_read_whole() -> None:
    with pytest.raises(InputError, match="the prompt has more than 30 tokens"):
        watched(40).prompt("a " * 100_000, most=30)
    assert len(watched(40).prompt(" " * 10_000 + "a " * 30, most=32)) == 32


def test_words_near_the_break_are_not_settled() -> None:
    ends = [100, 200, 300, LEAST - MARGIN + 1, LEAST - 1]
    read = ([0] * 5, [0, 1, 1, 2, 3], [(0, end) for end in ends])
    assert settled(read, 0, LEAST) == 3
    assert settled(([0, 0], [0, 0], [(0, 9), (9, 20)]), 0, LEAST) == 0, "one word may go on"
    assert settled(([None], [None], [(0, 0)]), 0, LEAST) == 0


def test_which_of_two_broken_texts_is_longer_is_not_known_at_first() -> None:
    words = list(range(99))
    read = ([0] * 99 + [1] * 99, words * 2, [(word, word + 1) for word in words] * 2)
    texts = ["a " * TWO_LONG] * 2
    assert not suffices(read, texts, LEAST, 16)
    assert suffices(read, texts, TWO_LONG, 16)
    assert suffices(read, [texts[0], ""], LEAST, 16) is False, (
        "99 beside 98: the second may be the longer one"
    )
    assert list(lengths_to_read(["a" * 10], 16)) == [10]
