"""Decoders give logits of the tokens that are named, and of no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_decoders
import tiny_t5

LIMIT = 2e-5
NAMED = ([11], [0, 4, 11], [7, 3])


@pytest.mark.parametrize("tied", [True, False])
def test_of_a_decoder_alone(tied: bool, tmp_path: Path) -> None:
    made = tiny_decoders.checkpoint(tmp_path, "llama", tie_word_embeddings=tied)
    decoder, ids = tiny_decoders.opened(tmp_path, made), tiny_decoders.tokens(2, 12)
    positions = np.tile(np.arange(12), (2, 1))
    whole, cache = decoder.step(ids, np.ones_like(ids), positions, decoder.empty(2))
    for named in NAMED:
        logits, past = decoder.step(ids, np.ones_like(ids), positions, decoder.empty(2), np.array(named))
        assert logits.shape == (2, len(named), decoder.settings.vocab)
        assert np.abs(logits - whole[:, named]).max() < LIMIT * np.abs(whole).max()
        assert all(np.array_equal(past[each], cache[each]) for each in cache)


@pytest.mark.parametrize("tied", [True, False])
def test_of_a_decoder_behind_an_encoder(tied: bool, tmp_path: Path) -> None:
    written = tiny_t5.Written(tiny_t5.checkpoint(tmp_path, tied=tied))
    source = written.source(*tiny_t5.sentences([9, 30]))
    answer = tiny_t5.sentences([12] * 2, seed=1)[0]
    whole, cache = written.step(source, answer, written.nothing(2))
    for named in NAMED:
        logits, past = written.step(source, answer, written.nothing(2), answers=np.array(named))
        assert logits.shape == (2, len(named), tiny_t5.VOCAB)
        assert np.abs(logits - whole[:, named]).max() < LIMIT * np.abs(whole).max()
        assert all(np.array_equal(past[each], cache[each]) for each in cache)
