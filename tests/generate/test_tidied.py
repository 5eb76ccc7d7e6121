"""Text that comes token by token from a tokenizer whose texts are tidied, which changes what was there before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from alula.codecs import TextCodec
from alula.core.model import ModelSpec
from alula.generate import Detokenizer

PIECES = (
    " ",
    "'",
    "n",
    "t",
    "s",
    "m",
    "v",
    "e",
    "r",
    ".",
    "?",
    ",",
    " '",
    " n",
    "x",
    " x",
    "n't",
    " 've",
    " .",
)


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    folder = tmp_path_factory.mktemp("tidied")
    tokenizer = Tokenizer(models.WordLevel({piece: at for at, piece in enumerate(PIECES)}, unk_token="x"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"clean_up_tokenization_spaces": True}))
    spec = ModelSpec(
        name="tiny",
        digest="0",
        revision="main",
        architecture="Tiny",
        family="tiny",
        task="text2text-generation",
        parts=(),
        max_length=16,
        vocab_size=len(PIECES),
        pad_id=0,
    )
    return TextCodec.open(folder, spec)


def streamed(codec: TextCodec, tokens: Sequence[int]) -> str:
    detokenizer = Detokenizer(codec.decode, codec.unsettled)
    return "".join([*(detokenizer.push(token) for token in tokens), detokenizer.finish()])


@given(tokens=st.lists(st.integers(0, len(PIECES) - 1), max_size=8))
@example(tokens=[14, 13, 1, 3])
@example(tokens=[14, 0, 1, 0, 9])
def test_what_comes_in_pieces_is_what_comes_at_once(codec: TextCodec, tokens: list[int]) -> None:
    assert streamed(codec, tokens) == codec.decode(tokens)


def test_what_cannot_change_does_not_wait(codec: TextCodec) -> None:
    detokenizer = Detokenizer(codec.decode, codec.unsettled)
    assert [detokenizer.push(PIECES.index(piece)) for piece in ("x", " x", " n", "'", "t", "x")] == [
        *("x", " x", "", "", "n't", "x"),
    ]


def test_other_tokenizers_wait_for_nothing(codec: TextCodec, tmp_path: Path) -> None:
    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"clean_up_tokenization_spaces": True}))
    assert TextCodec.open(tmp_path, codec.spec).unsettled == ()
    assert codec.unsettled != ()
