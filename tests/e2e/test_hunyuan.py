"""A HunyuanOCR from checkpoint to answers about images: held to transformers, each request as if it were alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.cli import main
from alula.core.decoding import IMAGE_AT, PATCHES, PLACES, Room, Work
from alula.core.errors import InputError, RunError
from alula.core.progress import Silent
from alula.engines import open_decoding
from alula.families import open_checkpoint
from alula.generate import Request
from alula.local import local_engines
from alula.looking import Looker
from alula.pictured import pictured
from alula.prompting import Prompts
from alula.prove import VerifyRequest, verify_bundle
from alula.scripts import opened_teacher, rehearse

torch = pytest.importorskip("torch")
pytest.importorskip("transformers.models.hunyuan_vl")
import tiny_hunyuan  # noqa: E402 - likewise
from safetensors.numpy import load_file, save_file  # noqa: E402 - likewise

Floats = NDArray[np.float32]
Pages = Sequence[tuple[int, int]]

ENGINES = ("onnxruntime", "openvino")
TIE = 1e-3
NO_IMAGES = {str(tiny_hunyuan.IMAGE): -100}
"""Transformers looks for an image at each token of that id, those of an answer too."""
STEPS = 64
ASKED: Sequence[Pages] = (
    [(32, 32)],
    [(40, 40)],
    [(12, 98)],
    [(98, 12)],
    [(8, 12), (20, 6)],
    [(4, 4)],
)
"""Patches down and across of the images of each prompt."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("tiny") / "hunyuan"
    return tiny_hunyuan.checkpoint(folder), folder


@pytest.fixture(scope="module")
def bundles(model: tuple[Any, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """As transformers has it, for each engine."""
    to = tmp_path_factory.mktemp("bundles")
    return {name: built(model[1], to / name, target=name, compat="transformers") for name in ENGINES}


def built(folder: Path, to: Path, **choices: Any) -> Bundle:
    usual = {"use_cache": False, "precision": "fp32"}
    return build(BuildRequest(model=str(folder), to=to, **{**usual, **choices}), Silent()).bundle


class Reference:
    """Transformers, one prompt at a time: it counts images over all rows of a batch, and so places them wrong."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def logits(self, request: Request, answer: Sequence[int]) -> Floats:
        """Behind the prompt and each token of an answer but the last, in one call without a cache."""
        ids = torch.tensor([[*request.prompt, *answer[:-1]]])
        images = [request.seen[name] for name in sorted(request.seen) if name.startswith(PATCHES)]
        seen: dict[str, Any] = {}
        if images:
            kinds = torch.zeros(ids.shape, dtype=torch.int32)
            kinds[0, torch.from_numpy(request.seen[IMAGE_AT])] = 1
            seen = {
                "pixel_values": torch.from_numpy(np.concatenate([each.reshape(-1, 48) for each in images])),
                "image_grid_thw": torch.tensor([[1, *each.shape[:2]] for each in images]),
                "mm_token_type_ids": kinds,
            }
        with torch.no_grad():
            found: Floats = self._model(input_ids=ids, **seen, use_cache=False).logits[0].numpy()
        found[:, tiny_hunyuan.IMAGE] -= 100
        return found[len(request.prompt) - 1 :]


def request(prompts: Prompts, pages: Pages, seed: int = 0, **body: Any) -> Request:
    """A question about noisy pages, that goes on to the last token allowed."""
    images = [tiny_hunyuan.page(*page, seed=seed + at) for at, page in enumerate(pages)]
    asked = {"max_tokens": STEPS, "ignore_eos": True, "repetition_penalty": 1, "logit_bias": NO_IMAGES}
    return prompts.look("Read!", images, {**asked, **body})


def answered(looker: Looker, requests: Sequence[Request]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in requests]
    for at, piece in looker.answers(requests):
        assert not piece.error
        found[at] += [chosen.token for chosen in piece.tokens]
    return found


@pytest.mark.parametrize("target", ENGINES)
def test_greedy_answers_are_those_of_transformers_side_by_side(
    target: str, model: tuple[Any, Path], bundles: Mapping[str, Bundle]
) -> None:
    """Pages of all sizes in one running batch, one with two, and a prompt without any."""
    reference = Reference(model[0])
    with Looker.open(bundles[target], cache_bytes=1 << 26, threads=1) as looker:
        requests = [request(looker.prompts, pages, seed=10 * at) for at, pages in enumerate([*ASKED, []])]
        answers = answered(looker, requests)
    assert len({tuple(answer) for answer in answers}) == len(answers), "no image made a difference"
    for asked, answer in zip(requests, answers, strict=True):
        assert len(answer) == STEPS
        logits = reference.logits(asked, answer)
        best = logits.max(axis=-1) - logits[np.arange(STEPS), answer]
        assert best.max() < TIE, f"a token that is {best.max():.3g} below the best at {int(best.argmax())}"


@pytest.mark.parametrize("target", ENGINES)
def test_logits_are_those_of_transformers_in_chunks_beside_others(
    target: str, model: tuple[Any, Path], bundles: Mapping[str, Bundle]
) -> None:
    reference, prompts = Reference(model[0]), Prompts.open(bundles[target])
    requests = [request(prompts, pages, seed=10 * at) for at, pages in enumerate(ASKED)]
    room = Room(sequences=8, blocks=400, block_tokens=16)
    decoding = open_decoding(local_engines(bundles[target]), room, threads=1)
    for at, asked in enumerate(requests):
        decoding.start(at, asked.given)
    chunk, done, found = 97, 0, dict[int, Floats]()
    while len(found) < len(requests):
        going = [at for at, asked in enumerate(requests) if done < len(asked.prompt)]
        work = [
            Work(
                sequence=at,
                tokens=requests[at].prompt[done : done + chunk],
                answers=done + chunk >= len(requests[at].prompt),
            )
            for at in going
        ]
        rows = iter(decoding.step(work))
        found |= {each.sequence: next(rows) for each in work if each.answers}
        done += chunk
    decoding.close()
    for at, asked in enumerate(requests):
        found[at][tiny_hunyuan.IMAGE] -= 100
        np.testing.assert_allclose(found[at], reference.logits(asked, [0])[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("target", ENGINES)
def test_a_bundle_is_proved_on_pages_against_transformers_either_way(
    target: str, model: tuple[Any, Path], bundles: Mapping[str, Bundle], tmp_path: Path
) -> None:
    """Tencent's code differs from transformers' in two places, which the reference then has as Tencent has them."""
    tencent = built(model[1], tmp_path / "B", target=target)
    assert (tencent.model.compat, bundles[target].model.compat) == ("tencent", "transformers")
    for bundle in (tencent, bundles[target]):
        assert bundle.verified
        assert {check.reference for check in bundle.checks if check.metric == "max_error"} == {"pytorch"}
        stored = [feeds for feeds in bundle.stored.feeds if PLACES in feeds]
        assert stored, "no page is in what the bundle checks itself by elsewhere"
        assert Bundle.open(bundle.root).model == bundle.model
    asked = [request(Prompts.open(each), ASKED[0]) for each in (tencent, bundles[target])]
    assert asked[0].prompt[1] == tiny_hunyuan.PLACE, "Tencent's client begins with an empty system message"
    assert tiny_hunyuan.PLACE not in asked[1].prompt


def test_a_bundle_of_one_code_is_not_taken_for_the_other(
    model: tuple[Any, Path], bundles: Mapping[str, Bundle]
) -> None:
    """What tells them apart is in the proof."""
    bundle = bundles["onnxruntime"]
    other = replace(bundle.model, compat="tencent")
    profile = bundle.manifest.profile
    with opened_teacher("own-graph", open_checkpoint(str(model[1])), other, profile) as teacher:
        held = rehearse(teacher, "own-graph", other, profile, bundle.tokenizer)
    checks = {check.metric: check for check in held.judge(local_engines(bundle), "fp32")}
    assert not checks["max_error"].passed


def test_verify_holds_it_to_the_reference_again(bundles: Mapping[str, Bundle]) -> None:
    again = verify_bundle(bundles["onnxruntime"], VerifyRequest(), Silent())
    assert again.verified


def test_both_spellings_of_a_checkpoint_give_the_same_answers(
    model: tuple[Any, Path], bundles: Mapping[str, Bundle], tmp_path: Path
) -> None:
    tiny_hunyuan.spelled_as_tencent(model[1], tmp_path / "tencent")
    other = built(
        tmp_path / "tencent",
        tmp_path / "B",
        target="onnxruntime",
        compat="transformers",
        reference="own-graph",
    )
    assert other.passed
    assert other.model.end_ids == (tiny_hunyuan.EOS, tiny_hunyuan.EOD)
    found = []
    for bundle in (other, bundles["onnxruntime"]):
        with Looker.open(bundle, cache_bytes=1 << 26, threads=1) as looker:
            found.append(answered(looker, [request(looker.prompts, [(8, 12)], max_tokens=16)]))
    assert found[0] == found[1]


@pytest.mark.parametrize("target", ENGINES)
def test_preempted_answers_look_again_and_say_the_same(target: str, bundles: Mapping[str, Bundle]) -> None:
    cost = 2 * 2 * 2 * 16 * 4 * 2
    with Looker.open(bundles[target], cache_bytes=1 << 26, threads=1) as looker:
        requests = [request(looker.prompts, [(8, 8 + 2 * at)], seed=at, max_tokens=40) for at in range(4)]
        whole = answered(looker, requests)
    with Looker.open(bundles[target], cache_bytes=170 * cost, sequences=4, threads=1) as looker:
        assert answered(looker, requests) == whole
        assert looker._generator.preempted > 0


@pytest.mark.parametrize("target", ENGINES)
def test_an_answer_with_the_token_for_images_sees_no_other_ones(
    target: str, bundles: Mapping[str, Bundle]
) -> None:
    """The token means itself where nothing was given for it, and shifts nobody's image."""
    prompts = Prompts.open(bundles[target])
    beside = request(prompts, [(8, 8)])
    room = Room(sequences=2, blocks=20, block_tokens=16)

    def logits(*, joined: bool) -> Floats:
        decoding = open_decoding(local_engines(bundles[target]), room, threads=1)
        decoding.start(0)
        decoding.step([Work(sequence=0, tokens=(5, 6), answers=True)])
        decoding.start(1, beside.given)
        first = [Work(sequence=0, tokens=(tiny_hunyuan.IMAGE,), answers=True)] if joined else []
        given = decoding.step([*first, Work(sequence=1, tokens=beside.prompt, answers=True)])
        decoding.close()
        row: Floats = given[-1]
        return row

    np.testing.assert_allclose(logits(joined=True), logits(joined=False), atol=1e-5)


def test_pages_are_made_as_small_as_the_engine_takes(bundles: Mapping[str, Bundle]) -> None:
    bundle = bundles["onnxruntime"]
    prompts, (down, across) = Prompts.open(bundle), bundle.grid
    assert prompts.patcher is not None
    assert (prompts.patcher.most_down, prompts.patcher.most_across) == (down, across)
    prompts.patcher = replace(prompts.patcher.within(10, 4), least_pixels=1)
    assert prompts.patches(np.zeros((400, 400, 3), np.uint8)).shape[:2] == (4, 4)


def test_what_was_not_delivered_is_refused(bundles: Mapping[str, Bundle]) -> None:
    """Tencent-Hunyuan/HunyuanOCR#72: an image did not reach the model, which described one all the same."""
    prompts, page = Prompts.open(bundles["onnxruntime"]), tiny_hunyuan.page(8, 8)
    with pytest.raises(InputError, match="has places for 0 images, 1 are given"):
        prompts.text("Read!", {}, [page])
    with pytest.raises(InputError, match="has places for 2 images, 1 are given"):
        prompts.look("a<patch>b", [page])
    with pytest.raises(InputError, match="has places for 1 images, 0 are given"):
        prompts.text("<image><patch></image>", {})
    with pytest.raises(InputError, match=r"an image is uint8 \(32, 32\); expected levels uint8"):
        prompts.look("Read!", [page[..., 0]])
    assert prompts.look("Read!", [Image.fromarray(page)]).prompt == prompts.look("Read!", [page]).prompt
    asked = prompts.look("Read!", [prompts.patches(page)])
    decoding = open_decoding(
        local_engines(bundles["onnxruntime"]), Room(sequences=1, blocks=20, block_tokens=16), threads=1
    )
    with pytest.raises(
        InputError, match="the images are 22 tokens of the vision part, and the prompt has 21"
    ):
        decoding.start(0, {**asked.given, IMAGE_AT: asked.given[IMAGE_AT][1:]})
    with pytest.raises(InputError, match=r"a sequence is given \['image_at', 'places'\]"):
        decoding.start(0, {name: asked.given[name] for name in (IMAGE_AT, PLACES)})
    decoding.close()
    with pytest.raises(RunError, match="closed"):
        decoding.step([Work(sequence=0, tokens=(1,), answers=True)])


def test_ends_penalty_and_length_are_the_checkpoints(bundles: Mapping[str, Bundle]) -> None:
    """Either end token ends an answer, whichever file names it; the class's own defaults do not."""
    bundle = bundles["onnxruntime"]
    assert bundle.model.end_ids == (tiny_hunyuan.EOS, tiny_hunyuan.EOD)
    asked = Prompts.open(bundle).look("Read!", [tiny_hunyuan.page(8, 8)])
    assert asked.sampling.repetition_penalty == 1.03
    assert asked.sampling.temperature == 0
    assert asked.stopping.end_tokens == bundle.model.end_ids
    assert asked.stopping.max_tokens == 1024 - len(asked.prompt)
    with Looker.open(bundle, cache_bytes=1 << 26, threads=1) as looker:
        pieces = list(looker.ask("Read!", [tiny_hunyuan.page(8, 8)], {"max_tokens": 3}))
        assert [piece.ending for piece in pieces] == [None, None, "length"]
        bias = {"logit_bias": {str(tiny_hunyuan.EOS): 100}}
        [last] = looker.ask("Read!", [tiny_hunyuan.page(8, 8)], bias)
        assert (last.ending, last.stopped_by) == ("stop", tiny_hunyuan.EOS)


def test_who_stops_reading_has_the_others_cancelled(bundles: Mapping[str, Bundle]) -> None:
    with Looker.open(bundles["onnxruntime"], cache_bytes=1 << 26, sequences=2, threads=1) as looker:
        taken: list[int] = []

        def asked() -> Any:
            for at in range(9):
                taken.append(at)
                yield request(looker.prompts, [(4, 4)], seed=at, max_tokens=8)

        answers = looker.answers(asked())
        next(answers)
        assert len(taken) == 2, "requests are taken as there is room for them"
        with pytest.raises(RunError, match="are being read already"):
            next(looker.answers([]))
        answers.close()
        assert not looker._generator.busy
        too_long = request(looker.prompts, [(4, 4)])
        refused = [piece for _, piece in looker.answers([too_long]) if piece.error]
        assert not refused


def test_pages_that_prove_a_bundle_have_their_places(bundles: Mapping[str, Bundle]) -> None:
    bundle = bundles["onnxruntime"]
    scripts = pictured(bundle.model, bundle.images, 1000)
    assert [len(script.given) - 2 for script in scripts] == [1, 1, 2, 1]
    assert not pictured(bundle.model, bundle.images, 10)
    for script in scripts:
        assert script.prompt.count(tiny_hunyuan.IMAGE) == len(script.given[IMAGE_AT])
        pages = [page for name, page in script.given.items() if name.startswith(PATCHES)]
        assert all(float(page.max() - page.min()) > 1 for page in pages), "a page without anything on it"


def test_an_image_is_read_from_the_command_line(
    bundles: Mapping[str, Bundle],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ran(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["alula", *words])
        return main()

    Image.fromarray(tiny_hunyuan.page(8, 12)).save(tmp_path / "page.png")
    root, page = str(bundles["openvino"].root), str(tmp_path / "page.png")
    args = ("run", root, "--image", page, "--prompt", "Read!", "--max-tokens", "4")
    assert ran(*args) == 0
    written = capsys.readouterr()
    assert written.out.strip()
    assert "tokens read, 4 written" in written.err
    assert ran(*args, "--json") == 0
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert (row["finish_reason"], row["tokens"]) == ("length", 4)
    assert ran(*args, "--no-chat") == 2
    assert "has places for 0 images, 1 are given" in capsys.readouterr().err
    assert ran("run", root, "--image", str(tmp_path / "none.png"), "--prompt", "Read!") == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"preprocessor_config.json": None},
            "has neither preprocessor_config.json nor processor_config.json",
        ),
        (
            {"model.safetensors": {"vit.extra.weight": 1}},
            "weights that no part of HunyuanOCR has: vit.extra.weight",
        ),
        ({"model.safetensors": {"model.norm.weight": None}}, "no weight"),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_refused_by_name(
    change: dict[str, Any], said: str, model: tuple[Any, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "changed"
    tiny_hunyuan.spelled_as_tencent(model[1], folder)
    for name, content in change.items():
        if content is None:
            (folder / name).unlink()
            continue
        weights = load_file(folder / name)
        for key, value in content.items():
            weights = {other: tensor for other, tensor in weights.items() if other != key}
            if value is not None:
                weights[key] = np.zeros(1, np.float32)
        save_file(weights, folder / name)
    with pytest.raises(InputError, match=said):
        built(folder, tmp_path / "B", target="onnxruntime", reference="own-graph")


def rows_of(folder: Path, **more: Any) -> Path:
    """Questions about pages with the answers that are right."""
    for at in range(3):
        Image.fromarray(tiny_hunyuan.page(8, 10 + 2 * at, seed=at)).save(folder / f"{at}.png")
    rows = [{"image": f"{at}.png", "prompt": "Read!", "answer": "abc", **more} for at in range(3)]
    file = folder / "pages.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return file


def test_a_build_is_promised_on_a_users_pages(model: tuple[Any, Path], tmp_path: Path) -> None:
    """What is lost of the reference's own answers about these pages, by the budget."""
    data = rows_of(tmp_path, answer=None)
    bundle = built(model[1], tmp_path / "B", target="openvino", data=data)
    assert bundle.verified
    promised = {check.metric: check for check in bundle.checks if check.rows}
    assert promised["next_token_disagreement"].samples > 10
    assert all(check.passed for check in promised.values())
    for change, said in (
        ({"messages": [{"role": "user", "content": "Read!"}], "prompt": None}, "has messages and an image"),
        ({"image": "none.png"}, "image .*none.png does not exist"),
    ):
        bad = rows_of(tmp_path, **change)
        with pytest.raises(InputError, match=said):
            built(model[1], tmp_path / "C", target="openvino", data=bad)


def test_compat_is_for_what_has_a_choice(model: tuple[Any, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="compat 'vllm' is not one of: tencent, transformers"):
        built(model[1], tmp_path / "B", target="onnxruntime", compat="vllm")
