from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from alula.codecs import Row, TextCodec, collate, fit, padded_lengths, row_outputs, within
from alula.codecs.lengths import cut_first, cut_longest, cut_second
from alula.codecs.rows import stepped
from alula.core.errors import InputError
from alula.core.model import ModelSpec, Part
from alula.core.profile import Profile, Range
from alula.core.tensor import TensorSpec

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "hello", "world"]
SPECIAL_TOKENS = [("[CLS]", 2), ("[SEP]", 3)]


def spec(
    max_length: int = 16, vocab_size: int = 8, types: bool = True, task: str = "embeddings"
) -> ModelSpec:
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if types else [])]
    inputs = tuple(TensorSpec(name=name, dtype="int64", shape=("batch", "length")) for name in names)
    output = TensorSpec(name="logits", dtype="float32", shape=("batch", "length", 3))
    return ModelSpec(
        name="tiny",
        digest="0",
        revision="main",
        architecture="BertModel",
        family="bert",
        task=task,
        parts=(Part(name="encoder", inputs=inputs, outputs=(output,)),),
        max_length=max_length,
        vocab_size=vocab_size,
        pad_id=0,
    )


def words_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=SPECIAL_TOKENS
    )
    return tokenizer


def codec(max_length: int = 16, **changed: bool) -> TextCodec:
    return TextCodec(words_tokenizer(), spec(max_length), **changed)


def test_a_text_becomes_ids_with_offsets_in_code_points() -> None:
    row = codec().encode("hello 🦜 world")
    assert row.ids == (2, 6, 1, 7, 3)
    assert row.offsets == ((0, 0), (0, 5), (6, 7), (8, 13), (0, 0))
    assert row.sources == (-1, 0, 0, 0, -1)
    assert not row.truncated


def test_a_stored_truncation_and_padding_is_not_obeyed() -> None:
    tokenizer = words_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=12)
    assert TextCodec(tokenizer, spec()).encode("a a a a").ids == (2, 4, 4, 4, 4, 3)


@pytest.mark.parametrize("words", [0, 1, 13, 14, 15, 16, 600])
def test_a_row_never_exceeds_the_models_length(words: int) -> None:
    row = codec(max_length=16).encode(" ".join(["a"] * words))
    assert len(row.ids) == min(words + 2, 16)
    assert row.ids[0] == 2
    assert row.ids[-1] == 3
    assert row.truncated == (words + 2 > 16)
    assert row.given == words + 2


def test_without_truncation_a_long_text_is_refused() -> None:
    with pytest.raises(InputError, match="text has 600 tokens; the model takes 512"):
        codec(max_length=512).encode("a " * 598, truncate=False)


def test_truncation_on_the_left_keeps_the_end() -> None:
    assert codec(max_length=4, left=True).encode("a b hello world").ids == (2, 6, 7, 3)
    assert codec(max_length=2, left=True).encode_ids([4, 5, 6]).ids == (5, 6)


def test_an_empty_first_text_and_a_long_second_one_fill_the_model() -> None:  # huggingface/tokenizers#381
    row = codec(max_length=512).encode_pair("", "a " * 510)
    assert len(row.ids) == 512
    assert row.type_ids.count(0) == 2
    assert row.type_ids.count(1) == 510


def test_a_question_that_leaves_no_room_is_refused() -> None:  # huggingface/tokenizers#381
    message = "the first text has 600 tokens, which leaves no room for the second; the model takes 512"
    with pytest.raises(InputError, match=message):
        codec(max_length=512).encode_pair("a " * 600, "b b", only_second=True)


def test_only_the_context_of_a_question_is_cut() -> None:
    row = codec(max_length=8).encode_pair("a a a", "b b b b b b", only_second=True)
    assert row.ids == (2, 4, 4, 4, 3, 5, 5, 3)


@given(first=st.integers(0, 20), second=st.integers(0, 20), limit=st.integers(5, 20), left=st.booleans())
def test_cutting_the_longest_agrees_with_the_tokenizers_library(
    first: int, second: int, limit: int, left: bool
) -> None:
    tokenizer = words_tokenizer()
    texts = " ".join(["a", "b"] * first), " ".join(["hello", "world"] * second)
    ours = TextCodec(tokenizer, spec(limit), left=left).encode_pair(*texts)
    tokenizer.enable_truncation(limit, strategy="longest_first", direction="left" if left else "right")
    theirs = tokenizer.encode(*texts)
    assert list(ours.ids) == theirs.ids
    assert list(ours.type_ids) == theirs.type_ids
    assert list(ours.offsets) == theirs.offsets


@given(
    sources=st.lists(st.sampled_from([-1, 0, 0, 0, 1, 1, 1]), max_size=40),
    limit=st.integers(1, 40),
    left=st.booleans(),
)
def test_cutting_keeps_the_order_and_every_special_token(sources: list[int], limit: int, left: bool) -> None:
    for cut in (cut_first, cut_longest, cut_second):
        try:
            kept = cut(sources, limit, left)
        except InputError:
            continue
        assert kept == sorted(set(kept))
        assert [at for at in kept if sources[at] == -1] == [at for at, s in enumerate(sources) if s == -1]
        assert cut is cut_first or len(kept) <= limit


def letters_tokenizer() -> Tokenizer:
    """Pairs of a letter to runs of 2 ** 12, merge by merge."""
    runs = ["a" * 2**power for power in range(13)]
    vocab = {"[PAD]": 0, **{run: at + 1 for at, run in enumerate(runs)}}
    return Tokenizer(models.BPE(vocab=vocab, merges=[(run, run) for run in runs[:-1]]))


@pytest.mark.parametrize("make", [letters_tokenizer, words_tokenizer])
def test_a_hundred_thousand_equal_letters_are_no_burden(make: Callable[[], Tokenizer]) -> None:
    """openai/tiktoken#195: a word of so many letters took time that grew with its square."""
    reader = TextCodec(make(), spec(max_length=16, vocab_size=14))
    began = time.perf_counter()
    row = reader.encode("a" * 100_000)
    assert 1 <= len(row.ids) <= 16
    assert len(reader.tokens("a" * 100_000)) <= 40
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize("text", ["\ud83d", "a \ude00", "\ude00\ud83d"])
def test_half_a_surrogate_pair_is_refused_in_words_that_can_be_sent(
    text: str,
) -> None:  # JustVugg/colibri#1589
    with pytest.raises(InputError, match=r"text has the lone surrogate U\+D") as caught:
        codec().encode(text)
    assert str(caught.value).encode()
    with pytest.raises(InputError, match=r"text has the lone surrogate U\+D"):
        codec().encode_pair("a", text)


@pytest.mark.parametrize("text", ["", "\0", "a\0b", "\ufffd", "🦜", "\u200d", " \n\t "])
def test_odd_but_valid_text_becomes_a_row(text: str) -> None:
    assert len(codec().encode(text).ids) >= 2


@pytest.mark.parametrize("pair", [False, True])
def test_a_long_text_becomes_the_same_row_as_the_tokenizers_library_makes(pair: bool) -> None:
    first, second = "hello a 🦜 " * 1000, "b world " * 10
    reader = codec(max_length=4000)
    row = reader.encode_pair(first, second) if pair else reader.encode(first)
    expected = words_tokenizer().encode(first, second if pair else None)
    assert (list(row.ids), list(row.offsets)) == (expected.ids, expected.offsets)


def test_ids_are_taken_as_they_are() -> None:
    assert codec().encode_ids([2, 4, 3]) == Row(ids=(2, 4, 3), type_ids=(0, 0, 0), given=3)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "the list of token ids is empty"),
        ([4, 8], r"token id 8; the model knows 0\.\.7"),
        ([-1], r"token id -1; the model knows 0\.\.7"),
    ],
)
def test_ids_the_model_does_not_know_are_refused(ids: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        codec().encode_ids(ids)


def test_a_token_the_model_does_not_know_is_refused() -> None:
    with pytest.raises(InputError, match=r"token id 7; the model knows 0\.\.6"):
        TextCodec(words_tokenizer(), spec(vocab_size=7)).encode("world")


def test_roberta_stops_at_its_usable_positions() -> None:  # huggingface/transformers#14243
    for words in (511, 512, 513, 514):
        assert len(codec(max_length=512).encode("a " * words).ids) == 512


def test_rows_are_padded_on_the_right_to_the_longest() -> None:
    reader = codec()
    feeds = reader.collate([reader.encode("a"), reader.encode_pair("a", "b b")])
    assert feeds["input_ids"].tolist() == [[2, 4, 3, 0, 0, 0], [2, 4, 3, 5, 5, 3]]
    assert feeds["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]]
    assert feeds["token_type_ids"].tolist() == [[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
    assert {array.dtype for array in feeds.values()} == {np.dtype("int64")}


def test_rows_are_padded_to_a_given_length() -> None:
    reader = codec()
    assert reader.collate([reader.encode("a")], 8)["input_ids"].shape == (1, 8)
    with pytest.raises(InputError, match="1 rows of up to 3 tokens cannot be padded to 2"):
        reader.collate([reader.encode("a")], 2)
    with pytest.raises(InputError, match="at most 16 tokens"):
        reader.collate([reader.encode("a")], 17)
    with pytest.raises(InputError, match="expected at least one row"):
        reader.collate([])


@pytest.mark.parametrize(
    ("texts", "batch", "length", "shape"),
    [
        (["a"], Range(1, 4, 4), Range(2, 8, 48), (1, 4)),
        (["a b a b", "a"], Range(3, 4, 4), Range(2, 8, 8), (3, 8)),
        (["a"], Range(1, 1, 1), Range(24, 24, 24), (1, 24)),
        (["a " * 40], Range(1, 1, 1), Range(1, 8, 12), (1, 12)),
        (["a a a a a a a"], Range(1, 1, 1), Range(1, 8, 512), (1, 10)),
    ],
)
def test_rows_are_fitted_to_what_the_engine_was_built_for(
    texts: list[str], batch: Range, length: Range, shape: tuple[int, int]
) -> None:
    profile = Profile({"batch": batch, "length": length})
    reader = codec(max_length=10 if length.max == 512 else 64)
    reader = TextCodec(words_tokenizer(), within(reader.spec, profile))
    rows = [reader.encode(text) for text in texts]
    feeds = fit(rows, reader.spec, profile)
    assert feeds["input_ids"].shape == shape
    assert feeds["input_ids"][-1, : len(rows[-1].ids)].tolist() == list(rows[-1].ids)
    assert len(row_outputs({"logits": feeds["input_ids"]}, rows, reader.spec)) == len(texts)


def test_lengths_are_padded_by_an_eighth_at_most_and_are_not_many() -> None:
    assert padded_lengths(40) == (4, 8, 12, 16, 20, 24, 28, 32, 36, 40)
    assert padded_lengths(50)[-3:] == (44, 48, 50), "the longest is what the engine takes"
    assert len(padded_lengths(512)) == 40
    for length in range(1, 2_000):
        assert length <= stepped(length) <= max(length + 3, length * 9 / 8)
        assert stepped(length) in padded_lengths(2_048)


def test_types_are_zeros_where_the_tokenizer_gives_none() -> None:  # huggingface/optimum#1758
    row = codec(types=False).encode_pair("a", "b")
    assert row.type_ids == (0,) * 5
    assert collate([row], spec())["token_type_ids"].tolist() == [[0] * 5]


def test_types_are_left_out_where_the_model_takes_none() -> None:
    row = codec().encode_pair("a", "b")
    assert sorted(collate([row], spec(types=False))) == ["attention_mask", "input_ids"]


def test_outputs_are_handed_out_per_row_without_padding() -> None:
    reader = codec()
    rows = [reader.encode("a"), reader.encode("a b hello")]
    batch = {"logits": np.arange(30, dtype=np.float32).reshape(2, 5, 3)}
    first, second = row_outputs(batch, rows, spec())
    assert first["logits"].shape == (3, 3)
    assert second["logits"].tolist() == batch["logits"][1].tolist()


def test_a_folder_is_opened_with_what_its_config_says(tmp_path: Path) -> None:
    words_tokenizer().save(str(tmp_path / "tokenizer.json"))
    config = {"truncation_side": "left", "model_input_names": ["input_ids", "attention_mask"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    row = TextCodec.open(tmp_path, spec(max_length=5)).encode_pair("a b", "hello")
    assert row.ids == (2, 5, 3, 6, 3)
    assert row.type_ids == (0, 0, 0, 0, 0)


def test_a_folder_without_a_fast_tokenizer_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no tokenizer.json in .*save_pretrained"):
        TextCodec.open(tmp_path, spec())
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="is not a tokenizer that can be read"):
        TextCodec.open(tmp_path, spec())
    words_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(InputError, match="holds list, expected an object"):
        TextCodec.open(tmp_path, spec())


@pytest.mark.parametrize("left", [False, True])
def test_a_row_without_places_is_the_row_with_them_but_for_those(left: bool) -> None:
    reader = codec(max_length=16, left=left)
    for text in ("a b a", "", "hello " + "a " * 40 + "world", "a b" * 2000):
        whole, bare = reader.encode(text), reader.encode(text, places=False)
        assert (bare.offsets, bare.sources, bare.words) == ((), (), ())
        assert (bare.ids, bare.type_ids, bare.given) == (whole.ids, whole.type_ids, whole.given)
        assert len(whole.offsets) == len(whole.sources) == len(whole.words) == len(whole.ids)
    with pytest.raises(InputError, match="text has 42 tokens; the model takes 16"):
        reader.encode("a " * 40, truncate=False, places=False)
