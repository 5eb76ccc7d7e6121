"""Training goes on where it stopped, with the same weights as if it had not, and its figures are what they say."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from training import pack
from training.batches import STAGES, stage_at
from training.evaluate import distance, held_pages, judged, loaded
from training.fonts import Fonts
from training.reading import answers
from training.render import SMALL, render
from training.train import Schedule, Training, arguments, paced, run

STEPS = 6


def told(fonts: Path, to: Path, *more: str) -> Namespace:
    small = [
        "--size",
        "tiny",
        "--patches",
        "800",
        "--rows",
        "4",
        "--workers",
        "0",
        "--device",
        "cpu",
        "--log",
        "1",
    ]
    still = ["--judge-pages", "0", "--steps", str(STEPS), "--warm", "2", "--fonts", str(fonts), "-o", str(to)]
    to.mkdir(exist_ok=True)
    return arguments().parse_args([*small, *still, *more])


def trained(given: Namespace) -> Training:
    training = Training(given.size, given.seed, Schedule(rate=1e-3, warm=2), torch.device("cpu"))
    if given.resume:
        training.load(given.resume)
    run(training, given)
    return training


def answers_lost(folder: Path) -> list[float]:
    return [json.loads(line)["answers"] for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]


def test_two_pieces_end_with_the_weights_of_one(fonts: Path, tmp_path: Path) -> None:
    whole = trained(told(fonts, tmp_path / "whole"))
    trained(told(fonts, tmp_path / "pieces", "--until", "3"))
    again = told(fonts, tmp_path / "pieces", "--resume", str(tmp_path / "pieces" / "last.pt"))
    pieces = trained(again)
    assert (whole.step, pieces.step) == (STEPS, STEPS)
    assert answers_lost(tmp_path / "whole") == answers_lost(tmp_path / "pieces")
    assert len(answers_lost(tmp_path / "whole")) == STEPS
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, pieces.model.state_dict()[name]), name
    assert not list((tmp_path / "pieces").glob("*.part"))
    kept = loaded(tmp_path / "whole" / "last.pt", torch.device("cpu"))
    assert torch.equal(kept.lm_head.weight, whole.model.lm_head.weight)


def test_a_checkpoint_travels_in_parts(fonts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained(told(fonts, tmp_path / "run", "--until", "3"))
    monkeypatch.setattr(pack, "PART", 100_000)
    state = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    parts = pack.split(pack.packed(state), tmp_path / "parts")
    assert len(parts) > 2
    assert max(part.stat().st_size for part in parts) <= 100_000
    torch.save(pack.unpacked(pack.whole(tmp_path / "parts")), tmp_path / "back.pt")
    again = trained(told(fonts, tmp_path / "run", "--resume", str(tmp_path / "back.pt"), "--until", "3"))
    assert again.step == first.step == 3
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
    moments = [each.optimizer.state_dict()["state"][0]["exp_avg_sq"] for each in (first, again)]
    torch.testing.assert_close(moments[0], moments[1], rtol=1e-2, atol=0)
    momenta = [each.hidden.state_dict()["state"][0]["momentum"] for each in (first, again)]
    torch.testing.assert_close(momenta[0], momenta[1], rtol=1e-2, atol=0)


def test_a_checkpoint_of_another_size_is_refused(fonts: Path, tmp_path: Path) -> None:
    training = Training("tiny", 0, Schedule(rate=1e-3, warm=2), torch.device("cpu"))
    training.save(tmp_path / "last.pt")
    training.size = "small"
    with pytest.raises(ValueError, match="is a training of size 'tiny', not 'small'"):
        training.load(tmp_path / "last.pt")


def test_the_rate_rises_then_falls() -> None:
    schedule = Schedule(rate=1.0, warm=10)
    assert schedule.rate_at(0, 0.0) == pytest.approx(0.1)
    assert schedule.rate_at(9, 0.0) == 1.0
    assert schedule.rate_at(1000, 0.5) == pytest.approx(0.505)
    assert schedule.rate_at(1000, 1.0) == pytest.approx(0.01)
    assert [schedule.beside_at(each) for each in (0, 0.6, 1)] == pytest.approx([1, 0.2, 0.2])


def test_small_pages_stay_until_they_are_read_or_time_is_short() -> None:
    assert [paced(0.05, reads=reads) for reads in (False, True)] == [0.05, 0.05]
    assert stage_at(paced(0.2, reads=False)) is STAGES[0]
    assert stage_at(paced(0.2, reads=True)) is STAGES[2]
    assert stage_at(paced(0.26, reads=False)) is STAGES[2]
    training = Training("tiny", 0, Schedule(rate=1e-3, warm=2), torch.device("cpu"))
    for loss, reads in ((2.0, False), (0.5, True), (0.9, True)):
        training.seen(loss)
        assert training.reads is reads
    with pytest.raises(FloatingPointError, match="the loss is nan at step 0"):
        training.seen(float("nan"))


def test_answers_do_not_depend_on_what_is_read_beside_them(fonts: Path) -> None:
    model: Any = Training("tiny", 0, Schedule(rate=1e-3, warm=2), torch.device("cpu")).model
    opened = Fonts.open(fonts, held=True)
    shapes = (SMALL[0], SMALL[1], SMALL[0], SMALL[1])
    pages = [
        render(number, seed=2, fonts=opened, shape=shape, budget=60) for number, shape in enumerate(shapes)
    ]
    together = answers(model, pages, most=8)
    assert together == [answers(model, [page], most=8)[0] for page in pages]


def test_character_errors_are_counted_and_coordinates_apart(fonts: Path) -> None:
    assert [
        distance(*pair) for pair in (("kitten", "sitting"), ("", "ab"), ("ab", ""), ("汉字", "汉字"))
    ] == [3, 2, 2, 0]
    pages = [page for page in held_pages(fonts, 40) if page.task in {"spotting", "text"}]
    spotted = next(page for page in pages if page.task == "spotting")
    plain = next(page for page in pages if page.task == "text")
    right = judged([spotted, plain], [spotted.answer, plain.answer])
    assert {right[task]["cer"] for task in right} == {0}
    head, tail = spotted.answer.rsplit("(", 1)
    number = int(tail.split(",")[0])
    moved = f"{head}({number - 4},{tail.split(',')[1]}"
    wrong = judged([spotted, plain], [moved, "x" + plain.answer])
    assert wrong["spotting_text"]["cer"] == 0
    assert wrong["spotting"]["coordinate_off_mean"] == pytest.approx(4 / (4 * len(spotted.lines)))
    assert wrong["text"]["cer"] == pytest.approx(1 / len(plain.answer))
