from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import served

from alula import evidence as evidence_module
from alula.benching import BenchRequest, bench_bundles
from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.core.errors import EngineError, InputError
from alula.core.profile import Profile, Range
from alula.core.progress import Silent
from alula.core.words import TOKENS
from alula.engines import backend
from alula.engines.torch import reference
from alula.families import describe, open_checkpoint
from alula.local import local_engine
from alula.prove import VerifyRequest, checkpoint_of, verify_bundle

NARROW = {"batch": Range(1, 2, 4), "length": Range(2, 16, 64)}
"""Less to compare and to measure than by default, and so quicker."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_a_bundle_cannot_keep_is_said_and_not_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = Bundle.open(served.make_bundle(tmp_path / "b"))
    # A file where the changed copy would be written.
    (tmp_path / f".b.{os.getpid()}.changing").write_text("")
    proved = verify_bundle(bundle, VerifyRequest(), Silent())
    measured = bench_bundles([bundle], BenchRequest(rounds=3, pytorch=False), Silent())
    assert proved.checks
    assert measured.rows
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(": ")[0].rpartition("/")[2] for text in said] == [
        "b does not keep these checks",
        "b does not keep these timings",
    ]
    assert Bundle.open(bundle.root) == bundle


def test_an_engine_for_this_machine_is_used_as_it_is(tmp_path: Path, own_cache: Path) -> None:
    bundle = Bundle.open(served.make_bundle(tmp_path / "b"))
    assert local_engine(bundle) == bundle.engine("encoder")
    assert not own_cache.exists()


def test_a_foreign_engine_is_compiled_again_once_and_kept(tmp_path: Path, own_cache: Path) -> None:
    bundle = Bundle.open(served.make_bundle(tmp_path / "b", target="fake of another machine"))
    engine = local_engine(bundle)
    assert engine.target == backend("fake").target
    assert engine.path.parent == own_cache / "engines"
    written = (engine.path / "engine.json").stat().st_mtime_ns
    assert local_engine(bundle) == engine
    assert (engine.path / "engine.json").stat().st_mtime_ns == written
    assert [path.name for path in (own_cache / "engines").iterdir()] == [engine.path.name]


@pytest.mark.parametrize("text", [None, "", "{", '{"schema": 1}'])
def test_a_kept_engine_that_was_damaged_is_compiled_again(tmp_path: Path, text: str | None) -> None:
    bundle = Bundle.open(served.make_bundle(tmp_path / "b", target="fake of another machine"))
    record = local_engine(bundle).path / "engine.json"
    whole = record.read_text()
    record.unlink() if text is None else record.write_text(text)
    assert backend("fake").open(local_engine(bundle)).outputs == bundle.engine("encoder").outputs
    assert record.read_text() == whole


def test_one_that_disagrees_with_the_stored_outputs_is_refused_and_not_kept(
    tmp_path: Path, own_cache: Path
) -> None:
    root = served.make_bundle(tmp_path / "b", target="fake of another machine", reference=-7.0)
    with pytest.raises(EngineError, match="does not agree with the stored reference outputs: embedding"):
        local_engine(Bundle.open(root))
    assert list((own_cache / "engines").iterdir()) == []


def test_without_the_checkpoint_the_stored_outputs_are_the_reference(tmp_path: Path) -> None:
    bundle = Bundle.open(served.make_bundle(tmp_path / "b"))
    proved = verify_bundle(bundle, VerifyRequest(reference="auto"), Silent())
    assert proved.verified
    assert {check.reference for check in proved.checks} == {"pytorch"}
    assert Bundle.open(proved.root).checks == proved.checks
    with pytest.raises(
        InputError, match=r"'golden' needs the checkpoint.*--model.*stored outputs \(pytorch\)"
    ):
        verify_bundle(bundle, VerifyRequest(reference="golden"), Silent())


def test_verify_keeps_a_failure_in_the_bundle(tmp_path: Path) -> None:
    bundle = Bundle.open(served.make_bundle(tmp_path / "b", reference=-7.0))
    assert bundle.verified
    assert not verify_bundle(bundle, VerifyRequest(reference="auto"), Silent()).verified
    assert not Bundle.open(bundle.root).verified


def of_minilm(folder: Path, to: Path, **more: Any) -> BuildRequest:
    """In fp32, held to the stored outputs."""
    return BuildRequest(
        model=str(folder), to=to, precision="fp32", target="onnxruntime", reference="golden", **more
    )


def test_a_checkpoint_that_is_named_must_be_the_one_that_was_built(
    tmp_path: Path, minilm_folder: Path
) -> None:
    bundle = Bundle.open(served.make_bundle(tmp_path / "b"))
    assert checkpoint_of(bundle, None) is None
    with pytest.raises(InputError, match=r"is another checkpoint than .*b was built from"):
        checkpoint_of(bundle, str(minilm_folder))


def test_evidence_never_gets_weaker(tmp_path: Path, minilm_folder: Path) -> None:
    """Built beside PyTorch, verified again where only the own graph is to be had: both comparisons count."""
    request = of_minilm(minilm_folder, tmp_path / "b")
    bundle = build(request, Silent()).bundle
    proved = verify_bundle(bundle, VerifyRequest(reference="own-graph"), Silent())
    assert proved.verified
    assert {check.reference for check in proved.checks} == {"golden", "own-graph"}


def test_a_build_that_fails_its_checks_does_not_replace_a_verified_bundle(
    tmp_path: Path, minilm_folder: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    request = of_minilm(minilm_folder, tmp_path / "b")
    good = build(request, Silent()).bundle
    # The fault: whatever a word is, the graph masks nothing.
    monkeypatch.setattr("alula.families.layers.MASKED", 0.0)
    bad = build(replace(request, use_cache=False), Silent()).bundle
    assert bad.root == tmp_path / "b.failed"
    assert not bad.verified
    assert Bundle.open(tmp_path / "b").manifest.identity == good.manifest.identity
    assert len(list((own_cache / "bundles").iterdir())) == 1
    fresh = build(replace(request, to=tmp_path / "new", use_cache=False), Silent()).bundle
    assert fresh.root == tmp_path / "new"
    assert not fresh.verified


def test_golden_outputs_hold_a_bundle_with_token_embeddings_too(tmp_path: Path, minilm_folder: Path) -> None:
    request = of_minilm(minilm_folder, tmp_path / "b", token_embeddings=True, name="another")
    bundle = build(request, Silent()).bundle
    assert bundle.verified
    held = {(check.output, check.reference) for check in bundle.checks if check.metric == "cosine"}
    assert held == {("embedding", "golden"), ("embedding", "own-graph"), (TOKENS, "own-graph")}
    assert set(bundle.stored.outputs[0]) == {"embedding", TOKENS}
    proved = verify_bundle(bundle, VerifyRequest(reference="golden", model=str(minilm_folder)), Silent())
    assert proved.verified


def test_another_tokenizer_is_another_bundle_and_an_unwritable_cache_is_no_failure(
    tmp_path: Path, minilm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    shutil.copytree(minilm_folder, model)
    request = BuildRequest(
        model=str(model),
        to=tmp_path / "b",
        precision="fp32",
        target="onnxruntime",
        reference="golden",
        axes=NARROW,
    )
    assert not build(request, Silent()).cached
    assert build(request, Silent()).cached
    tokenizer = model / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("[unused1]", "[unused_1]"))
    (tmp_path / "file").write_text("")
    again = build(request, Silent())
    assert not again.cached
    assert "[unused_1]" in (again.bundle.tokenizer / "tokenizer.json").read_text()
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "file" / "cache"))
    assert build(request, Silent()).bundle.verified


def test_golden_rows_are_packed_to_what_a_narrow_profile_takes(minilm_folder: Path) -> None:
    spec = describe(open_checkpoint(str(minilm_folder)))
    profile = Profile({"batch": Range(3, 3, 3), "length": Range(2, 16, 16)})
    evidence = evidence_module._golden(spec, profile)
    assert len(evidence.samples) >= 8
    for sample, outputs in zip(evidence.samples, evidence.outputs, strict=True):
        assert profile.takes(sample.sizes(spec))
        assert outputs["embedding"].shape == (3, 384)
    with closing(reference(minilm_folder, spec, threads=1)) as session:
        checks = evidence.judge(session, spec, "fp32")
    assert all(check.passed and check.samples >= 8 for check in checks)


def test_usual_shapes_are_those_that_the_bundle_takes(tmp_path: Path) -> None:
    bundle = Bundle.open(served.make_bundle(tmp_path / "b"))  # 1..4 rows of 2..48 tokens
    measured = bench_bundles([bundle], BenchRequest(rounds=6, pytorch=False), Silent())
    assert {row.shape for row in measured.rows} == {"1x32"}


def test_bench_keeps_each_bundles_own_rows_and_refuses_another_model(tmp_path: Path) -> None:
    one, two = (Bundle.open(served.make_bundle(tmp_path / name)) for name in ("one", "two"))
    request = BenchRequest(shapes=((1, 8), (2, 4)), rounds=6, pytorch=False)
    measured = bench_bundles([one, two], request, Silent())
    assert [row.shape for row in measured.rows] == ["1x8", "1x8", "2x4", "2x4"]
    assert all(row.load_ms is not None and row.peak_host_bytes is not None for row in measured.rows)
    for bundle in (one, two):
        assert [row["shape"] for row in Bundle.open(bundle.root).timings] == ["1x8", "2x4"]
    other = Bundle.open(served.make_bundle(tmp_path / "other", "reranking"))
    with pytest.raises(InputError, match="other: is another model than"):
        bench_bundles([one, other], request, Silent())
    with pytest.raises(InputError, match=r"axis 'length' is 64; built for 2\.\.48"):
        bench_bundles([one], BenchRequest(shapes=((1, 64),), pytorch=False), Silent())


def test_a_cache_that_cannot_be_written_gives_way_to_a_folder_nobody_else_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    bundle = Bundle.open(served.make_bundle(tmp_path / "b", target="fake of another machine"))
    engine = local_engine(bundle)
    private = engine.path.parent.parent
    assert private.parent == tmp_path
    assert private.stat().st_mode & 0o077 == 0
