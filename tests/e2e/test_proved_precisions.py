"""A build with rows of the user's: what is promised is kept, searched for, said, or refused."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from alula.build import BuildRequest, Built, build
from alula.bundles import Bundle, Rung
from alula.core.errors import InputError
from alula.core.profile import Range
from alula.core.progress import Note, Progress, Silent, quiet
from alula.prove import VerifyRequest, verify_bundle

AXES = {"batch": Range(1, 2, 8), "length": Range(2, 8, 32)}


class Interrupted:
    """Progress that is stopped by the user at one phase."""

    def __init__(self, at: str) -> None:
        self.at = at

    def phase(self, what: str) -> AbstractContextManager[Note]:
        if what.startswith(self.at):
            raise KeyboardInterrupt
        return nullcontext(quiet)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("tiny") / "encoder")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("tiny") / "classifier"
    return tiny.checkpoint(to, task="sequence-classification", num_labels=3)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "texts.txt"
    file.write_text("\n".join(sentences(24)))
    return file


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "cache"))


def sentences(count: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(tiny.WORDS, size=int(rng.integers(2, 20)))) for _ in range(count)]


def built(
    model: Path, to: Path, progress: Progress | None = None, target: str = "onnxruntime", **choices: Any
) -> Built:
    request = BuildRequest(
        model=str(model), to=to, **{"axes": AXES, "use_cache": False, "target": target, **choices}
    )
    return build(request, progress or Silent())


def rung(bundle: Bundle, precision: str) -> Rung:
    return next(rung for rung in bundle.manifest.rungs if rung.precision == precision)


def means(bundle: Bundle) -> list[tuple[int, float]]:
    """Rows and limit of each mean distance that was measured on rows of the user's."""
    return [(check.samples, check.limit) for check in bundle.checks if check.metric == "cosine_distance_mean"]


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_every_rung_that_was_tried_is_in_the_bundle_with_its_evidence(
    target: str, encoder: Path, texts: Path, tmp_path: Path
) -> None:
    bundle = built(encoder, tmp_path / "out", target=target, data=texts, budget=0.05).bundle
    assert bundle.verified
    tried = {rung.precision: rung for rung in Bundle.open(tmp_path / "out").manifest.rungs}
    assert list(tried) == ["fp32", *(["bf16"] if target == "openvino" else []), "int8", "int8-mixed"]
    for precision in set(tried) - {"int8-mixed"}:
        first = tried[precision].checks[0]
        assert (first.metric, first.limit, first.samples) == ("cosine_distance_mean", 0.05, 24)
        assert first.reference == "pytorch"
        assert tried[precision].passed
        assert tried[precision].p50_ms
        assert tried[precision].bytes
    assert tried["fp32"].checks[0].worst < tried["int8"].checks[0].worst
    assert tried["int8-mixed"].checks == ()
    assert tried["int8-mixed"].reason == "not searched: int8 is within the limits"
    promise = bundle.manifest.promise
    assert promise["budget"] == 0.05
    assert promise["data"]["rows"] == promise["calibration"]["rows"] == 24
    assert str(texts.parent) not in json.dumps(bundle.manifest.to_json()["promise"])


def test_int8_that_loses_too_much_fails_and_is_still_shown(
    encoder: Path, texts: Path, tmp_path: Path
) -> None:
    bundle = built(encoder, tmp_path / "out", data=texts, budget=1e-6).bundle
    assert bundle.verified
    assert rung(bundle, "fp32").taken
    lost = rung(bundle, "int8")
    assert not lost.passed
    assert lost.p50_ms is not None
    assert lost.reason.startswith("embedding cosine_distance_mean")
    assert "limit 1e-06" in lost.reason


def test_int8_alone_that_loses_too_much_is_a_failed_build(encoder: Path, texts: Path, tmp_path: Path) -> None:
    bundle = built(encoder, tmp_path / "out", precision="int8", data=texts, budget=1e-6).bundle
    assert not bundle.verified
    assert any(not check.passed for check in bundle.checks)


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_the_mixed_rung_keeps_as_few_layers_as_the_promise_needs(
    target: str, encoder: Path, texts: Path, tmp_path: Path
) -> None:
    plain = built(encoder, tmp_path / "plain", target=target, precision="int8", data=texts, budget=1.0).bundle
    lost = plain.checks[0].worst
    mixed = built(
        encoder, tmp_path / "mixed", target=target, precision="mixed", data=texts, budget=lost / 2
    ).bundle
    assert mixed.verified
    found = rung(mixed, "int8-mixed")
    assert 0 < len(found.kept) < 12
    assert found.checks[0].worst <= lost / 2
    assert mixed.engine("encoder").graph.precision == "int8-mixed"


def test_a_promise_that_only_fp32_keeps_leaves_nothing_to_mix(
    encoder: Path, texts: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        InputError, match="nothing to keep of int8-mixed: all 12 layers would have to be kept out of int8"
    ):
        built(encoder, tmp_path / "out", precision="int8-mixed", data=texts, budget=1e-12)


def test_fp16_is_proved_on_the_rows_given(encoder: Path, texts: Path, tmp_path: Path) -> None:
    bundle = built(encoder, tmp_path / "out", precision="fp16", data=texts, budget=0.001).bundle
    assert bundle.verified
    assert bundle.checks[0].metric == "cosine_distance_mean"
    assert 0 < bundle.checks[0].worst < 1e-4


def test_fp16_mixed_keeps_layers_where_fp16_loses_too_much(
    encoder: Path, texts: Path, tmp_path: Path
) -> None:
    plain = built(encoder, tmp_path / "plain", precision="fp16", data=texts, budget=1.0).bundle
    lost = plain.checks[0].worst
    mixed = built(encoder, tmp_path / "mixed", precision="fp16-mixed", data=texts, budget=lost * 0.9).bundle
    assert mixed.verified
    assert 0 < len(rung(mixed, "fp16-mixed").kept) < 12


@pytest.mark.parametrize("phase", ["write the int8 graph", "compare int8", "search the layers"])
def test_an_interrupt_keeps_what_is_finished(phase: str, encoder: Path, texts: Path, tmp_path: Path) -> None:
    made = built(
        encoder,
        tmp_path / "out",
        Interrupted(phase),
        data=texts,
        budget=1e-6,
        precision="auto",
        use_cache=True,
    )
    assert made.interrupted or phase == "search the layers"
    bundle = Bundle.open(tmp_path / "out")
    assert bundle.verified
    assert rung(bundle, "fp32").taken
    graphs = sorted(path.name for path in (bundle.root / "graphs").glob("*.onnx"))
    assert graphs == ["encoder.fp32.onnx"]
    if made.interrupted:
        assert rung(bundle, "int8").reason == "interrupted before it was finished"
    again = built(encoder, tmp_path / "again", data=texts, budget=1e-6, use_cache=True)
    assert not made.interrupted or not again.cached


def test_an_interrupted_build_lies_beside_a_verified_bundle(
    encoder: Path, texts: Path, tmp_path: Path
) -> None:
    before = built(encoder, tmp_path / "out", precision="int8", data=texts, budget=0.05).bundle
    made = built(encoder, tmp_path / "out", Interrupted("write the int8 graph"), data=texts, budget=0.05)
    assert made.interrupted
    assert made.bundle.root == tmp_path / "out.interrupted"
    assert made.bundle.verified
    assert Bundle.open(tmp_path / "out").manifest.identity == before.manifest.identity


def test_a_bundle_that_only_its_own_graph_speaks_for_does_not_replace_a_verified_one(
    encoder: Path, tmp_path: Path
) -> None:
    built(encoder, tmp_path / "out", precision="fp32")
    again = built(encoder, tmp_path / "out", precision="fp32", reference="own-graph").bundle
    assert again.root == tmp_path / "out.unverified"
    assert Bundle.open(tmp_path / "out").verified


def test_an_interrupt_before_anything_is_finished_leaves_nothing(
    encoder: Path, texts: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        built(encoder, tmp_path / "out", Interrupted("compile fp32"), data=texts)
    assert list(tmp_path.iterdir()) == [tmp_path / "cache"] or not (tmp_path / "out").exists()


def test_labels_and_a_metric_of_the_users_judge(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "labelled.jsonl"
    rows = [{"text": text, "label": f"LABEL_{at % 3}"} for at, text in enumerate(sentences(30))]
    file.write_text("\n".join(map(json.dumps, rows)))
    bundle = built(classifier, tmp_path / "out", data=file, precision="int8", budget=0.5).bundle
    first = bundle.checks[0]
    assert (first.metric, first.output, first.samples) == ("accuracy_drop", "labels", 30)
    assert "->" in first.note
    assert Bundle.open(tmp_path / "out").checks[0].note == first.note

    (tmp_path / "mine.py").write_text(
        "def share_of_first(predictions, labels, texts):\n"
        "    return sum(said == 'LABEL_0' for said in predictions) / len(labels)\n"
    )
    monkeypatch.chdir(tmp_path)
    own = built(classifier, tmp_path / "own", data=file, metric="mine:share_of_first", budget=0.5).bundle
    assert own.checks[0].metric == "mine:share_of_first_drop"
    proved = verify_bundle(own, VerifyRequest(), Silent())
    assert [check.metric for check in proved.checks].count("mine:share_of_first_drop") == 1


def test_verify_judges_other_rows_and_keeps_what_was_found_on_the_first(
    encoder: Path, texts: Path, tmp_path: Path
) -> None:
    bundle = built(encoder, tmp_path / "out", precision="int8", data=texts, budget=0.05).bundle
    other = tmp_path / "other.txt"
    other.write_text("\n".join(sentences(40)[24:]))
    without = verify_bundle(bundle, VerifyRequest(), Silent())
    assert without.checks[0] == bundle.checks[0]
    judged = verify_bundle(without, VerifyRequest(data=other), Silent())
    assert means(judged) == [(24, 0.05), (16, 0.05)]
    assert judged.verified
    strict = verify_bundle(judged, VerifyRequest(data=other, budget=1e-6), Silent())
    assert means(strict) == [(24, 0.05), (16, 1e-6)]
    assert not strict.verified
    assert not Bundle.open(tmp_path / "out").verified
    # Neither a look without rows nor a looser budget takes back what failed.
    assert not verify_bundle(strict, VerifyRequest(), Silent()).verified
    loose = verify_bundle(Bundle.open(tmp_path / "out"), VerifyRequest(data=other, budget=1.0), Silent())
    assert means(loose) == [(24, 0.05), (16, 1e-6), (16, 1.0)]
    assert not loose.verified
    with pytest.raises(InputError, match="--budget and --metric say what may be lost on your rows"):
        verify_bundle(bundle, VerifyRequest(budget=0.1), Silent())


@pytest.mark.parametrize("precision", ["int8", "int8-mixed", "mixed", "fp16-mixed"])
def test_what_is_proved_on_rows_is_refused_without_any(precision: str, encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"precision '{precision}' is calibrated and judged on your rows"):
        built(encoder, tmp_path / "out", precision=precision)


def test_a_budget_without_rows_is_refused(encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="--budget says what may be lost on your rows; give them with --data"
    ):
        built(encoder, tmp_path / "out", budget=0.004)


def test_bad_rows_are_refused_by_line_or_left_out_and_counted(encoder: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    good = [json.dumps({"text": text}) for text in sentences(9)]
    file.write_text("\n".join([*good[:4], '{"text": 7}', *good[4:]]))
    with pytest.raises(InputError, match=r"rows.jsonl:5: field 'text' is int, expected str"):
        built(encoder, tmp_path / "out", data=file)
    bundle = built(encoder, tmp_path / "out", data=file, precision="fp32", skip_bad_rows=True).bundle
    assert (bundle.manifest.promise["data"]["rows"], bundle.manifest.promise["data"]["skipped"]) == (9, 1)


def test_an_empty_set_is_refused_before_anything_is_built(encoder: Path, tmp_path: Path) -> None:
    """Adlik/Adlik#534: a calibrator that was never asked for data."""
    (tmp_path / "rows.txt").write_text("\n\n")
    with pytest.raises(InputError, match=r"rows.txt holds no rows; expected at least one"):
        built(encoder, tmp_path / "out", data=tmp_path / "rows.txt", precision="int8")


def test_other_rows_or_another_budget_are_another_bundle_in_the_cache(
    encoder: Path, texts: Path, tmp_path: Path
) -> None:
    choices: dict[str, Any] = {"precision": "int8", "use_cache": True}
    assert not built(encoder, tmp_path / "a", data=texts, budget=0.05, **choices).cached
    assert built(encoder, tmp_path / "b", data=texts, budget=0.05, **choices).cached
    assert not built(encoder, tmp_path / "c", data=texts, budget=0.06, **choices).cached
    fewer = tmp_path / "fewer.txt"
    fewer.write_text("\n".join(sentences(23)))
    assert not built(encoder, tmp_path / "d", data=fewer, budget=0.05, **choices).cached
