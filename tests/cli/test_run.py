"""`alula run` on engines built for few sizes only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import served

from alula.cli.run import run
from alula.core.profile import Range


@pytest.mark.parametrize(
    ("batch", "length"),
    [(Range(1, 4, 4), Range(2, 8, 8)), (Range(3, 3, 3), Range(2, 8, 8)), (Range(3, 4, 4), Range(8, 8, 8))],
)
def test_texts_are_cut_and_batches_filled_to_what_the_engine_was_built_for(
    batch: Range, length: Range, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = served.make_bundle(tmp_path / "one", batch=batch, length=length)
    texts = ["a " * 20, "a", "b", "a b"]
    code = run(
        root,
        text=texts,
        query=None,
        question=None,
        context=None,
        image=[],
        prompt=[],
        chat=None,
        system=None,
        max_tokens=None,
        temperature=None,
        top_p=None,
        top_k=None,
        seed=None,
        stop=[],
        feeds=None,
        out=None,
        as_json=True,
    )
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert code == 0
    assert [row["tokens"] for row in rows] == [8, 3, 3, 4]
