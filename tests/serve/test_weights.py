"""What rows weigh, and that no batch weighs more than it may."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import served
import tritonclient.http as triton
from served import running

from alula.bundles import Bundle
from alula.core.profile import Profile, Range
from alula.serve import ServeOptions
from alula.serve.service import policy
from alula.serve.weights import row_bytes, within_bytes

PROFILE = Profile({"batch": Range(1, 8, 32), "length": Range(1, 32, 64)})


def test_a_row_of_tokens_weighs_what_its_tokens_and_its_outputs_do() -> None:
    part = served.spec("embeddings").part("encoder")
    assert row_bytes(part, PROFILE, "length") == (4 * 4, 2 * 8), (
        "four numbers out, two of eight bytes a token in"
    )
    named = served.spec("token-classification").part("encoder")
    assert row_bytes(named, PROFILE, "length") == (0, 2 * 8 + 3 * 4)


def test_a_batch_of_texts_has_as_many_rows_as_weigh_no_more_than_it_may() -> None:
    options = ServeOptions(bundles=(Path("one"),), max_batch_bytes=10_000)
    made = policy(served.spec("embeddings"), PROFILE, options)
    assert [made.rows(length) for length in (1, 32, 64)] == [32, 10_000 // 528, 10_000 // 1_040]
    assert policy(served.spec("embeddings"), PROFILE, ServeOptions(bundles=(Path("one"),))).rows(64) == 32


def test_arrays_are_weighed_as_they_come(tmp_path: Path) -> None:
    assert within_bytes([np.zeros(2, np.float32), np.zeros(1, np.int32)], 24) == 2
    assert within_bytes([np.zeros(100)], 24) == 1
    root = served.make_arrays(tmp_path / "arrays")
    assert Bundle.open(root).model.task == "tensors"
    with (
        running([root], max_batch_bytes=24) as server,
        triton.InferenceServerClient(server.url.removeprefix("http://")) as client,
    ):
        x, k = np.arange(10, dtype=np.float32).reshape(5, 2), np.full(5, 3, np.int32)
        inputs = [triton.InferInput("x", [5, 2], "FP32"), triton.InferInput("k", [5], "INT32")]
        inputs[0].set_data_from_numpy(x)
        inputs[1].set_data_from_numpy(k)
        found = client.infer("tiny/arrays", inputs)
        assert found.as_numpy("sum").tolist() == (x + 3).tolist()
        assert found.as_numpy("rows")[:, 0].tolist() == [2, 2, 2, 2, 1]
