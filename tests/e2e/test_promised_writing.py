"""Models that write text, judged on a user's prompts: what they lose, what that costs a precision, what is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_decoders
import tiny_t5
from tokenizers import Tokenizer, models, pre_tokenizers

from alula import families
from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.cli import main
from alula.core.check import Check
from alula.core.errors import InputError
from alula.core.profile import Range
from alula.core.progress import Silent
from alula.data import read
from alula.engines import open_decoding, rows
from alula.local import local_engines
from alula.prompted import Prompted, asked_of, proofs
from alula.prove import VerifyRequest, verify_bundle
from alula.rehearsed import go_on
from alula.scripts import NOTHING, opened_teacher, stacked

KINDS = ("llama", "t5")
PROMPTS = ("ab", "hello there", "q", "the cat sat on a mat", "xyz", "lorem ipsum dolor", "m n o p", "zz top")
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}a"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny checkpoint of each kind, with a tokenizer that knows letters; a chat for the one that takes chats."""
    made = {}
    for kind in KINDS:
        to = tmp_path_factory.mktemp("tiny") / kind
        if kind == "t5":
            tiny_t5.checkpoint(to, kind)
        else:
            tiny_decoders.checkpoint(to, kind, eos_token_id=3, max_position_embeddings=256)
        letters = {chr(97 + at): at for at in range(26)}
        tokenizer = Tokenizer(models.WordLevel({"[UNK]": 26, **letters}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        tokenizer.save(str(to / "tokenizer.json"))
        made[kind] = to
    (made["llama"] / "chat_template.jinja").write_text(TEMPLATE)
    return made


def lines(to: Path, *given: Any) -> Path:
    to.write_text("".join(f"{json.dumps(row)}\n" for row in given), "utf-8")
    return to


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return lines(tmp_path / "prompts.jsonl", *({"text": text} for text in PROMPTS))


def built(model: Path, to: Path, **choices: Any) -> Bundle:
    given = {"use_cache": False, "precision": "fp32", "target": "onnxruntime", **choices}
    return build(BuildRequest(model=str(model), to=to, **given), Silent()).bundle


@pytest.fixture(scope="module")
def bundles(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """One of each kind, for all tests that only read it."""
    root = tmp_path_factory.mktemp("bundles")
    return {kind: built(folder, root / kind) for kind, folder in folders.items()}


def on_rows(checks: tuple[Check, ...]) -> dict[str, Check]:
    return {check.metric: check for check in checks if check.rows}


def proved(bundle: Bundle, data: Path, reference: Any = "pytorch") -> Prompted:
    spec, profile = bundle.model, bundle.answering.plan.profile
    asked = asked_of(read(data, spec.task), spec, profile, bundle.tokenizer, budget=0.004)
    checkpoint = families.open_checkpoint(bundle.manifest.source)
    _, found = proofs(reference, checkpoint, spec, profile, bundle.tokenizer, asked=asked)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_judged_and_the_evidence_is_kept(
    kind: str, folders: dict[str, Path], prompts: Path, tmp_path: Path
) -> None:
    bundle = built(folders[kind], tmp_path / "out", data=prompts, budget=0.01)
    assert bundle.verified
    found = on_rows(Bundle.open(bundle.root).checks)
    assert list(found) == ["next_token_disagreement", "perplexity_rise"]
    data = read(prompts, bundle.model.task)
    for check in found.values():
        assert (check.rows, check.limit, check.reference) == (data.digest[:16], 0.01, "pytorch")
        assert check.samples > 2 * len(PROMPTS)
    assert bundle.manifest.promise == {
        "budget": 0.01,
        "metric": None,
        "data": {
            "file": "prompts.jsonl",
            "rows": len(PROMPTS),
            "skipped": 0,
            "labelled": False,
            "sha256": data.digest,
        },
    }


@pytest.mark.parametrize("kind", KINDS)
def test_what_loses_too_much_is_left_and_a_higher_precision_taken(
    kind: str, folders: dict[str, Path], prompts: Path, tmp_path: Path
) -> None:
    bundle = built(
        folders[kind], tmp_path / "out", data=prompts, budget=0.0001, precision="fp32,int4-weights"
    )
    high, low = bundle.manifest.rungs
    assert (high.taken, high.passed, low.passed) == (True, True, False)
    failed = [check for check in low.checks if not check.passed]
    assert failed[0].rows
    assert low.reason.startswith(f"answers {failed[0].metric}")
    assert bundle.verified


@pytest.mark.parametrize("kind", KINDS)
def test_with_answers_what_is_written_is_judged(
    kind: str, folders: dict[str, Path], prompts: Path, tmp_path: Path
) -> None:
    # Answers are as long as there is room, however long those that are given are.
    bundle = built(folders[kind], tmp_path / "out", axes={"total": Range(1, 8, 40)})
    asked = proved(bundle, prompts)
    said = zip(PROMPTS, asked.answers, strict=True)
    named = [{"text": text, "answer": answer} for text, answer in said if answer]
    assert len(named) > 1
    # One of the answers is not what the model says.
    named[-1]["answer"] = "q q q"
    data = lines(tmp_path / "answers.jsonl", *named)
    found = on_rows(verify_bundle(bundle, VerifyRequest(data=data, budget=0.004), Silent()).checks)
    assert list(found) == ["exact_match_drop", "next_token_disagreement", "perplexity_rise"]
    right = (len(named) - 1) / len(named)
    assert found["exact_match_drop"].note.startswith(f"{right:.4f} -> {right:.4f}")
    assert [check.limit for check in found.values()] == pytest.approx([0.004, 0.02, 0.02])


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_candidate_writes_is_what_it_would_write_by_itself(
    kind: str, folders: dict[str, Path], prompts: Path, tmp_path: Path
) -> None:
    """Of an engine that says other tokens: only what lies behind the first of them is written again."""
    bundle = built(folders[kind], tmp_path / "out", precision="int4-weights", axes={"total": Range(1, 8, 40)})
    said = zip(PROMPTS, proved(bundle, prompts).answers, strict=True)
    labelled = lines(
        tmp_path / "a.jsonl", *({"text": text, "answer": answer or "a"} for text, answer in said)
    )
    asked = proved(bundle, labelled)
    seen: dict[Any, Any] = {}
    written = Prompted._written

    def watched(self: Prompted, decoding: Any, replies: Any) -> Iterator[Any]:
        for script, said in written(self, decoding, replies):
            seen[script] = said
            yield script, said

    engines = local_engines(bundle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Prompted, "_written", watched)
        asked.judge(engines)
    bare = [replace(script, follow=()) for script in asked.scripts]
    with closing(open_decoding(engines, asked._room([asked.scripts]))) as decoding:
        own = go_on(decoding, bare, asked.asked.most, bundle.model.end_ids)
    assert [seen[script] for script in asked.scripts] == [asked.asked.read(tokens) for tokens in own]
    assert any(tokens != script.follow for tokens, script in zip(own, asked.scripts, strict=True))


def test_a_metric_of_the_users_judges_what_is_written(
    folders: dict[str, Path], prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_for_writing.py").write_text(
        "def vowels(predictions, labels, texts):\n"
        "    assert all(isinstance(said, str) for said in predictions)\n"
        "    assert set(labels) == {None} and all(len(text) == 1 for text in texts)\n"
        "    return sum(letter in 'aeiou' for said in predictions for letter in said) + 1.0\n"
    )
    monkeypatch.chdir(tmp_path)
    bundle = built(folders["llama"], tmp_path / "out", data=prompts, metric="mine_for_writing:vowels")
    found = on_rows(bundle.checks)
    assert next(iter(found)) == "mine_for_writing:vowels_drop"
    assert bundle.manifest.promise["metric"] == "mine_for_writing:vowels"
    assert bundle.verified


def test_what_the_reference_never_says_is_refused_before_anything_is_compiled(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = lines(tmp_path / "p.jsonl", {"text": "ab", "answer": "42"}, {"text": "cd", "answer": "43"})

    def compiled(*given: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("alula.engines.onnxruntime.OnnxRuntime.compile", compiled)
    with pytest.raises(InputError) as refused:
        built(folders["llama"], tmp_path / "out", data=data)
    assert "the reference itself gets nothing right on 2 labelled rows" in str(refused.value)
    assert "for the first row. What matters in an answer, a --metric of your own can look for" in str(
        refused.value
    )
    assert not (tmp_path / "out").exists()


def test_a_chat_is_asked_as_the_template_has_it(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    bundle = bundles["llama"]
    data = lines(
        tmp_path / "chats.jsonl",
        {"text": "hi"},
        {"prompt": "hi"},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "hi"}]},
    )
    asked = proved(bundle, data)

    def spelled(text: str) -> tuple[int, ...]:
        return tuple(ord(letter) - 97 for letter in text)

    assert [script.prompt for script in asked.scripts] == [
        spelled(t) for t in ("hi", "uhia", "uhia", "sxuhia")
    ]


def test_rows_that_cannot_be_asked_are_named_or_left_out(folders: dict[str, Path], tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    data = lines(tmp_path / "p.jsonl", {"text": "ab"}, {"text": "a" * 30}, {"text": "cd"}, chat)
    axes = {"total": Range(1, 8, 24), "source": Range(1, 8, 24)}
    for kind, left in (("llama", 3), ("t5", 2)):
        sizes = {name: sizes for name, sizes in axes.items() if kind == "t5" or name == "total"}
        with pytest.raises(InputError, match=rf"p\.jsonl:2: the prompt has 30 tokens; {kind} takes 24"):
            built(folders[kind], tmp_path / "no", data=data, axes=sizes)
        bundle = built(folders[kind], tmp_path / kind, data=data, axes=sizes, skip_bad_rows=True)
        about = bundle.manifest.promise["data"]
        assert (about["rows"], about["skipped"]) == (left, 4 - left)
    bad = lines(tmp_path / "bad.jsonl", {"messages": [{"role": "user", "content": 7}]})
    with pytest.raises(InputError, match=r"bad\.jsonl:1: messages\[0\]\.content is a number"):
        built(folders["llama"], tmp_path / "no", data=bad)


def test_what_the_build_found_stays_until_the_rows_come_again(
    folders: dict[str, Path], prompts: Path, tmp_path: Path
) -> None:
    bundle = built(folders["llama"], tmp_path / "out", data=prompts, budget=0.01)
    other = lines(tmp_path / "other.jsonl", {"text": "other words"}, {"text": "and more of them"})
    both = verify_bundle(bundle, VerifyRequest(data=other), Silent())
    assert {check.rows for check in both.checks if check.rows} == {
        read(path, "text-generation").digest[:16] for path in (prompts, other)
    }
    assert {check.limit for check in both.checks if check.rows} == {0.01}
    again = verify_bundle(both, VerifyRequest(), Silent())
    assert len([check for check in again.checks if check.rows]) == 4
    assert again.verified
    gone = replace(bundle, manifest=replace(bundle.manifest, source=str(tmp_path / "gone")))
    with pytest.raises(InputError, match="beside the checkpoint, which is not at hand"):
        verify_bundle(gone, VerifyRequest(data=other), Silent())


def test_a_cache_that_forgets_fails_on_the_users_prompts_and_ends_with_3(
    folders: dict[str, Path],
    prompts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert built(folders["llama"], out, data=prompts).verified
    words = ["alula", "verify", str(out), "--data", str(prompts), "--budget", "1%", "--json"]
    monkeypatch.setattr("sys.argv", words)
    assert main() == 0
    capsys.readouterr()
    grown = rows.Rows.grown

    def forgetful(self: rows.Rows, new: int, past: Any, *width: int) -> rows.Rows:
        return grown(self, new, {name: array * 0 for name, array in past.items()}, *width)

    monkeypatch.setattr(rows.Rows, "grown", forgetful)
    assert main() == 3
    found = json.loads(capsys.readouterr().out)["rows"]
    failed = {row["metric"] for row in found if row.get("rows") and not row["passed"]}
    assert failed == {"next_token_disagreement", "perplexity_rise"}


@pytest.mark.parametrize("reference", ["pytorch", "own-graph"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_reference_answers_side_by_side_as_it_does_alone(
    kind: str, reference: Any, bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    """Shorter prompts stand behind nothing, which must not be seen."""
    bundle = bundles[kind]
    asked = proved(bundle, lines(tmp_path / "p.jsonl", *({"text": text} for text in PROMPTS[:4])), reference)
    # All have room for as many tokens, or those of other lengths would not be answered together.
    assert set(asked.asked.most) == {64}
    profile = bundle.answering.plan.profile
    checkpoint = families.open_checkpoint(bundle.manifest.source)
    with opened_teacher(reference, checkpoint, bundle.model, profile) as teacher:
        for script, told in zip(asked.scripts, asked.likely, strict=True):
            source = stacked([script.source], NOTHING) if script.source else None
            alone = teacher.write(stacked([script.prompt]), len(script.follow), source)
            assert tuple(alone[0].tolist()) == script.follow
            whole = teacher.read(stacked([script.tokens]), source)[0][len(script.prompt) - 1 :]
            assert (whole.argmax(-1) == told.tokens[:, 0]).all()
            assert np.allclose(np.exp(told.shares).sum(-1) + np.exp(told.rest), 1, atol=1e-9)
            assert told.tokens[:, 0].tolist() == list(script.follow)


def test_a_template_with_a_name_is_part_of_the_key(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["llama"]
    named = folder / "additional_chat_templates"
    named.mkdir()
    (named / "tool_use.jinja").write_text(TEMPLATE)
    first = build(
        BuildRequest(model=str(folder), to=tmp_path / "a", target="onnxruntime", precision="fp32"), Silent()
    )
    again = build(
        BuildRequest(model=str(folder), to=tmp_path / "b", target="onnxruntime", precision="fp32"), Silent()
    )
    (named / "tool_use.jinja").write_text(TEMPLATE + "b")
    other = build(
        BuildRequest(model=str(folder), to=tmp_path / "c", target="onnxruntime", precision="fp32"), Silent()
    )
    assert (first.cached, again.cached, other.cached) == (False, True, False)
