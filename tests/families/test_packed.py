"""Several texts in a row: the same numbers as each in a row of its own, whatever family, task and mask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
import tiny  # noqa: E402 - it needs both

from alula.core.errors import InputError  # noqa: E402 - likewise
from alula.core.packing import beside, is_packed, without_packing  # noqa: E402 - likewise
from alula.core.tensor import Feeds  # noqa: E402 - likewise
from alula.families import describe, open_checkpoint, refuse_unless_packs, write  # noqa: E402 - likewise
from alula.graphs import load, save  # noqa: E402 - likewise

LIMIT = 2e-5
LENGTHS = (3, 17, 9, 30, 4, 4, 12, 26, 8)


class Graph:
    """A graph in ONNX Runtime."""

    def __init__(self, model: ir.Model) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
        self.inputs = [each.name for each in self._session.get_inputs()]

    def run(self, feeds: Feeds) -> list[NDArray[np.float32]]:
        return list(self._session.run(None, {name: feeds[name] for name in self.inputs}))


def feeds_of(mask: NDArray[np.int64], pad_id: int, vocab: int) -> dict[str, NDArray[np.int64]]:
    numbers = np.random.default_rng(5)
    ids = np.where(mask == 1, numbers.integers(5, vocab, mask.shape), pad_id)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": numbers.integers(0, 2, mask.shape) * mask,
    }


def masks() -> dict[str, NDArray[np.int64]]:
    places = np.arange(max(LENGTHS) + 2)
    right = (places < np.array(LENGTHS)[:, None]).astype(np.int64)
    holes = right * (np.random.default_rng(3).random(right.shape) < 0.7)
    holes[:, 0] = 1
    return {"right": right, "left": np.ascontiguousarray(right[:, ::-1]), "holes": holes.astype(np.int64)}


@pytest.mark.parametrize(
    "task", ["embeddings", "sequence-classification", "token-classification", "question-answering"]
)
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
def test_texts_in_one_row_give_what_each_gives_in_its_own(tmp_path: Path, family: str, task: str) -> None:
    checkpoint = open_checkpoint(str(tiny.checkpoint(tmp_path, family, task=task)))
    spec = describe(checkpoint, task)
    refuse_unless_packs(spec)
    padded, packed = (Graph(write(checkpoint, spec, "encoder", packed=packed)) for packed in (False, True))
    assert set(packed.inputs) - set(padded.inputs) == {"cells", "cell_texts", "token_cells"}
    for side, mask in masks().items():
        feeds = feeds_of(mask, spec.pad_id, spec.vocab_size)
        told = beside(mask)
        assert told["cells"].shape[0] < len(LENGTHS)
        for one, other in zip(padded.run(feeds), packed.run({**feeds, **told}), strict=True):
            assert one.shape == other.shape
            along = task in {"token-classification", "question-answering"}
            kept = mask == 1 if along else np.ones(len(LENGTHS), bool)
            assert np.abs(one[kept] - other[kept]).max() < LIMIT, side


def test_a_packed_graph_is_known_by_its_inputs(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(tiny.checkpoint(tmp_path / "bert")))
    spec = describe(checkpoint)
    saved = save(write(checkpoint, spec, "encoder", packed=True), tmp_path / "graph.onnx", "fp32")
    assert is_packed(saved.inputs)
    assert without_packing(saved.inputs) == spec.part("encoder").inputs
    assert not is_packed(spec.part("encoder").inputs)
    assert load(saved.path).graph.num_nodes() == saved.nodes


def test_a_family_that_looks_at_distances_is_not_packed(tmp_path: Path) -> None:
    spec = describe(open_checkpoint(str(tiny.checkpoint(tmp_path, "mpnet"))))
    with pytest.raises(InputError, match="family 'mpnet'; texts are packed into rows by bert, "):
        refuse_unless_packs(spec)
