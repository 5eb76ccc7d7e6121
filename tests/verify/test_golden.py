from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from alula.verify import golden
from alula.verify.golden import Row

DEMO = "all-minilm-l6-v2"


def demo() -> golden.Golden:
    made_with, _ = golden.load(golden.FOLDER / f"{DEMO}.npz")
    found = golden.find(made_with["digest"])
    assert found is not None
    return found


def test_outputs_ship_for_the_demo_model_and_stay_small() -> None:
    assert DEMO in golden.names()
    assert (golden.FOLDER / f"{DEMO}.npz").stat().st_size < 200_000


def test_no_outputs_are_found_for_other_weights() -> None:
    assert golden.find("0" * 64) is None


def test_they_hold_texts_of_every_length_padded_and_alone() -> None:
    found = demo()
    sizes = np.concatenate([sample.mask.sum(axis=1) for sample in found.samples])
    assert len(sizes) == len(found.texts) >= 24
    assert sizes.min() == 2
    assert sizes.max() == 256
    assert {len(sample.mask) for sample in found.samples} == {1, 8}
    assert any(not sample.mask.all() for sample in found.samples)


def test_their_embeddings_are_finite_unit_vectors_that_differ() -> None:
    found = demo()
    rows = np.concatenate([outputs["embedding"] for outputs in found.outputs])
    assert rows.shape == (len(found.texts), 384)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(len(rows)), abs=1e-6)
    nearest = (rows @ rows.T - 2 * np.eye(len(rows))).max()
    assert nearest < 0.999


def test_they_say_what_made_them() -> None:
    made_with = demo().made_with
    assert {"digest", "weights", "transformers", "torch"} <= set(made_with)


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    rows = [
        Row("", (1, 2), np.array([0.0, 1.0], dtype=np.float32)),
        Row("größer", (1, 5, 6, 2), np.array([1.0, 0.0], dtype=np.float32)),
    ]
    golden.save(
        tmp_path / "x.npz", {"digest": "d", "pad_id": "0", "inputs": "input_ids attention_mask"}, rows
    )
    made_with, loaded = golden.load(tmp_path / "x.npz")
    assert made_with["digest"] == "d"
    assert [(row.text, row.ids, row.embedding.tolist()) for row in loaded] == [
        ("", (1, 2), [0.0, 1.0]),
        ("größer", (1, 5, 6, 2), [1.0, 0.0]),
    ]
