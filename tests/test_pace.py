"""Prompts and steps of a model that writes, as what is timed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tiny_decoders
import tiny_t5

from alula import families
from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import Profile, Range
from alula.core.progress import Silent
from alula.local import local_engines
from alula.pace import TURN, USUAL, EngineWriter, Paced, Pacing, TorchPace, items_of, pace_name, paces_of
from alula.scripts import torch_writer


@pytest.fixture(scope="module", params=["llama", "t5"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder, kind = tmp_path_factory.mktemp("tiny"), str(request.param)
    model = folder / kind
    if kind == "t5":
        tiny_t5.checkpoint(model, kind)
    else:
        tiny_decoders.checkpoint(model, kind, eos_token_id=3)
    asked = {"target": "onnxruntime", "precision": "fp32", "tokenizer": False, "use_cache": False}
    return build(BuildRequest(model=str(model), to=folder / "out", **asked), Silent()).bundle  # type: ignore[arg-type] # of one dict


@dataclass
class Told:
    """A writer that remembers what it was asked."""

    asked: list[Any] = field(default_factory=list)

    def begin(self, tokens: Any, source: Any) -> None:
        self.asked.append((tokens.shape, None if source is None else source.shape))

    def step(self) -> None:
        self.asked.append("step")

    def close(self) -> None:
        self.asked.append("close")


def test_a_prompt_is_read_in_every_run_and_answers_are_begun_between_turns(bundle: Bundle) -> None:
    spec, told = bundle.model, Told()
    prompt = ((2, 1), (2, 9)) if spec.reads_source else ((2, 9), None)
    read = Paced(told, spec, (2, 9))
    read.begin()
    read.run({})
    read.run({})
    assert told.asked == [prompt, prompt]
    told.asked.clear()
    written = Paced(told, spec, (2, 9, 2 * TURN + 1))
    for _ in range(3):
        written.begin()
        for _ in range(TURN):
            written.run({})
    # Of eleven tokens two turns write ten, and no turn is begun that the one left is too few for.
    steps = ["step"] * TURN
    assert told.asked == [prompt, *steps, *steps, prompt, *steps]
    Pacing(told, spec).close()
    assert told.asked[-1] == "close"


def test_engines_write_what_transformers_writes(bundle: Bundle) -> None:
    spec, source = bundle.model, None
    tokens = np.random.default_rng(1).integers(0, spec.vocab_size, (3, 9))
    if spec.reads_source:
        source, tokens = tokens, np.full((3, 1), spec.start_id)
    checkpoint = families.open_checkpoint(bundle.manifest.source)
    engines = EngineWriter(local_engines(bundle), spec, [(3, 9, 8)])
    with closing(engines), closing(torch_writer(checkpoint, spec, threads=1)) as torch:
        answers = torch.begin(tokens, source)
        # Begun twice: what was written before is forgotten.
        engines.begin(tokens, source)
        engines.step()
        engines.begin(tokens, source)
        for _ in range(6):
            assert engines._best == answers.best[:, 0].tolist()
            engines.step()
            answers.step()
        with closing(TorchPace(torch_writer(checkpoint, spec, threads=1))) as pace:
            pace.begin(tokens, source)
            pace.step()


def profile(total: int, source: int = 64) -> Profile:
    past = Range(0, 0, total - 1, least=0)
    return Profile({"total": Range(1, 1, total), "past": past, "source": Range(1, 1, source)})


def test_shapes_are_those_that_every_engine_takes(bundle: Bundle) -> None:
    spec: ModelSpec = bundle.model
    wide = profile(8192, 8192)
    assert paces_of(spec, [wide], ()) == USUAL
    assert paces_of(spec, [wide, profile(200, 200)], ()) == tuple(s for s in USUAL if s[1] == 128)
    assert paces_of(spec, [profile(40, 40)], ()) == ((1, 20), (1, 20, TURN))
    assert paces_of(spec, [wide], [(4, 9), (4, 9, 7)]) == ((4, 9), (4, 9, 7))
    assert [pace_name(shape) for shape in ((4, 9), (4, 9, 7))] == ["4x9", "4x9+7"]
    assert [items_of(shape) for shape in ((4, 9), (4, 9, 7))] == [36, 4]


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((8,), "shape 8; {name} writes text: SEQUENCESxPROMPT, or SEQUENCESxPROMPT+NEW"),
        ((1, 8, TURN - 1), f"shape 1x8+{TURN - 1}: {TURN - 1} new tokens, expected at least {TURN}"),
        ((1, 65), "shape 1x65: prompts of 65 tokens; the engine reads 64"),
        ((1, 8, 90), "shape 1x8+90: {all} tokens in all; the engine holds 64"),
    ],
)
def test_a_shape_that_an_engine_does_not_take_is_refused(shape: Any, said: str, bundle: Bundle) -> None:
    spec = bundle.model
    with pytest.raises(InputError) as refused:
        paces_of(spec, [profile(8192, 8192), profile(64)], [shape])
    assert str(refused.value) == said.format(name=spec.name, all=91 if spec.reads_source else 98)
