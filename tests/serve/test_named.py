from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import served

from alula.bundles import Bundle
from alula.core.profile import Range
from alula.serve.named import BundleReplaced, Named


def test_renewed_evidence_is_the_same_bundle_and_another_one_is_not(tmp_path: Path) -> None:
    root = served.make_bundle(tmp_path / "b")
    named = Named.at(root)
    Bundle.open(root).with_checks([]).with_timings([{"engine": "fake"}])
    named.refuse_if_replaced()
    shutil.rmtree(root)
    with pytest.raises(BundleReplaced, match="b: the bundle was replaced or changed while it was served"):
        named.refuse_if_replaced()
    served.make_bundle(root, batch=Range(1, 2, 2))
    with pytest.raises(BundleReplaced, match="restart the server"):
        named.refuse_if_replaced()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"files": 3}', '{"files": ["x"]}'])
def test_a_manifest_that_cannot_be_read_is_no_bundle(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    assert Named.at(tmp_path).identity == ""


def test_the_folder_of_a_pipeline_stands_for_the_bundles_in_it(tmp_path: Path) -> None:
    alone = served.make_bundle(tmp_path / "alone")
    for part in ("detect", "turn", "recognise"):
        (tmp_path / "pages" / part).mkdir(parents=True)
        assert [named.root for named in Named.all_at([tmp_path / "pages"])] == [tmp_path / "pages"]
        (tmp_path / "pages" / part / "manifest.json").write_text("{}")
    found = [named.root.name for named in Named.all_at([alone, tmp_path / "pages"])]
    assert found == ["alone", "detect", "turn", "recognise"]
