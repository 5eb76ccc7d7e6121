"""From a bundle to answers: what is opened, how much room it has, and that its words are those of transformers."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_decoders
import tiny_t5
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.core.decoding import Cost
from alula.core.errors import InputError
from alula.core.progress import Silent
from alula.engines import cache_cost
from alula.generate import Generator, Request, Sampling, Stopping
from alula.generating import CACHE_MOST, SEQUENCES, open_generator, room_of, usual_cache


@pytest.mark.parametrize(
    ("cost", "cache_bytes", "sequences", "longest", "expected"),
    [
        (Cost(token_bytes=10), 1_600, 4, 1_000, (4, 10)),
        (Cost(token_bytes=10), 1_759, 4, 1_000, (4, 10)),
        (Cost(token_bytes=10), 10**9, 4, 33, (4, 12)),
        (Cost(token_bytes=10, sequence_bytes=100), 2_000, 4, 1_000, (4, 10)),
        (Cost(token_bytes=10, sequence_bytes=500), 2_000, 4, 1_000, (2, 6)),
        (Cost(token_bytes=10, sequence_bytes=1_800), 2_000, 4, 1_000, (1, 1)),
        (Cost(token_bytes=10), 160, 4, 1_000, (4, 1)),
    ],
)
def test_a_cache_is_bounded_by_its_bytes_and_by_what_can_be_used(
    cost: Cost, cache_bytes: int, sequences: int, longest: int, expected: tuple[int, int]
) -> None:
    room = room_of(cost, cache_bytes, sequences, longest)
    assert (room.sequences, room.blocks) == expected
    assert room.sequences * cost.sequence_bytes + room.tokens * cost.token_bytes <= cache_bytes


def test_too_few_bytes_for_a_block_are_refused_with_what_it_takes() -> None:
    with pytest.raises(
        InputError, match="159 bytes are too few for a cache; 16 tokens of one sequence take 160"
    ):
        room_of(Cost(token_bytes=10), 159, 4, 100)
    with pytest.raises(InputError, match="take 260: give it more"):
        room_of(Cost(token_bytes=10, sequence_bytes=100), 259, 4, 100)


def test_unasked_a_cache_takes_a_share_of_what_the_weights_leave() -> None:
    assert usual_cache(10_000, 2_000) == 2_000
    assert usual_cache(1_000, 2_000) == 0
    assert usual_cache(1 << 50, 0) == CACHE_MOST
    assert usual_cache(None, 2_000) == CACHE_MOST


def checkpoint(to: Path, kind: str) -> Any:
    """A tiny model with a tokenizer of words, and transformers' own of it."""
    count = tiny_decoders.SIZES["vocab_size"] if kind == "llama" else tiny_t5.VOCAB
    if kind == "llama":
        reference = tiny_decoders.checkpoint(to, "llama", eos_token_id=2, pad_token_id=0)
    else:
        # As deep on both sides, or generate() of transformers makes too small a cache.
        tiny_t5.checkpoint(to, num_layers=3, decoder_start_token_id=0, eos_token_id=1, pad_token_id=0)
        reference = tiny_t5.reference(to)
    words = Tokenizer(models.WordLevel({f"w{at}": at for at in range(count)}, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(to / "tokenizer.json"))
    (to / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}), "utf-8"
    )
    return reference


@pytest.fixture(scope="module", params=["llama on onnxruntime", "llama on openvino", "t5 on onnxruntime"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Any]:
    kind, _, target = request.param.partition(" on ")
    folder = tmp_path_factory.mktemp("writer")
    reference = checkpoint(folder / kind, kind)
    asked = BuildRequest(
        model=str(folder / kind), to=folder / "bundle", target=target, precision="fp32", use_cache=False
    )
    return build(asked, Silent()).bundle, reference


def request(bundle: Bundle, seed: int, length: int, most: int) -> Request:
    tokens = tuple(tiny_decoders.tokens(1, length, seed)[0].clip(4, tiny_t5.VOCAB - 1).tolist())
    start = bundle.model.start_id
    return Request(
        prompt=tokens if start < 0 else (start,),
        source=() if start < 0 else tokens,
        sampling=Sampling(temperature=0),
        stopping=Stopping(max_tokens=most),
    )


def answers(generator: Generator, asked: list[Request]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {at: [] for at in range(len(asked))}
    for at, each in enumerate(asked):
        generator.add(at, each)
    while generator.busy:
        for piece in generator.step(0.0):
            assert not piece.error
            found[piece.id] += [chosen.token for chosen in piece.tokens]
    return found


def expected(reference: Any, asked: Request) -> list[int]:
    ids = torch.tensor([asked.source or asked.prompt])
    reference.generation_config.eos_token_id = None
    reference.generation_config.pad_token_id = 0
    said = reference.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=asked.stopping.max_tokens, do_sample=False
    )
    written: list[int] = said[0, -asked.stopping.max_tokens :].tolist()
    return written


def test_a_bundle_writes_what_transformers_writes(built: tuple[Bundle, Any]) -> None:
    bundle, reference = built
    assert bundle.verified
    with closing(open_generator(bundle, threads=1)) as generator:
        asked = [request(bundle, seed, 3 + 4 * seed, 12) for seed in range(5)]
        given = answers(generator, asked)
        assert [given[at] for at in given] == [expected(reference, each) for each in asked]
        generator.limits = replace(generator.limits, chunk_tokens=2)
        assert answers(generator, asked) == given
        assert len({tuple(tokens) for tokens in given.values()}) > 1


def test_the_room_is_what_was_asked_for_and_what_the_engine_takes(built: tuple[Bundle, Any]) -> None:
    bundle, _ = built
    most = bundle.engine("decoder").plan.profile.axes["total"].max
    with closing(open_generator(bundle)) as generator:
        assert generator.limits.sequences == SEQUENCES
        assert generator.holds == most + 1
        words = [piece.text for piece in pieces(generator, request(bundle, 0, 3, 3))]
        assert "".join(words).startswith("w")
    cost = cache_cost(bundle.manifest.engines)
    cache_bytes = 3 * cost.sequence_bytes + 40 * cost.token_bytes
    with closing(open_generator(bundle, cache_bytes=cache_bytes, sequences=3, waiting=7)) as generator:
        limits = generator.limits
        assert 1 <= limits.sequences <= 3
        assert limits.waiting == 7
        taken = limits.blocks * limits.block_tokens * cost.token_bytes
        assert 0 < limits.sequences * cost.sequence_bytes + taken <= cache_bytes
    with pytest.raises(InputError, match="1000 bytes are too few for a cache"):
        open_generator(bundle, cache_bytes=1_000)


def pieces(generator: Generator, asked: Request) -> list[Any]:
    generator.add(1, asked)
    found = []
    while generator.busy:
        found += generator.step(0.0)
    return found


def test_a_bundle_whose_model_writes_nothing_is_refused(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "bert")
    asked = BuildRequest(
        model=str(folder), to=tmp_path / "bundle", target="onnxruntime", precision="fp32", use_cache=False
    )
    bundle = build(asked, Silent()).bundle
    with pytest.raises(InputError, match="is for task 'embeddings', which writes no text"):
        open_generator(bundle)
