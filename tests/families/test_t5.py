"""The three parts of a T5 give what transformers gives: whole, in pieces, in batches, and with trained weights."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tiny_t5 import (
    PARTS,
    SIZES,
    VOCAB,
    Arrays,
    Floats,
    Ints,
    Written,
    checkpoint,
    part,
    reference,
    sentences,
    settings_of,
)

from alula.core.errors import InputError
from alula.families import open_checkpoint
from alula.families.distances import bucket
from alula.families.t5 import parts

LIMIT = 3e-5
# Beyond 20 all distances are one, and sentences are longer than that.
NEAR: dict[str, Any] = {"relative_attention_num_buckets": 12, "relative_attention_max_distance": 20}
KINDS: dict[str, dict[str, Any]] = {
    "t5": {},
    "t5 1.1": {"tied": False, "feed_forward_proj": "gated-gelu"},
    "mt5": {"kind": "mt5", "tied": False},
    "mt5 tied": {"kind": "mt5"},
    "more encoder": {"num_layers": 3, "num_decoder_layers": 1},
    "gelu": {"feed_forward_proj": "gelu"},
    "gated silu": {"feed_forward_proj": "gated-silu", "d_kv": 6},
    "near": NEAR,
    "epsilon": {"layer_norm_epsilon": 0.2},
    "stated activation": {"feed_forward_proj": "gated-gelu", "dense_act_fn": "relu", "is_gated_act": False},
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """PyTorch's threads wait for each other longer than such models take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tensors(*arrays: NDArray[Any]) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def told(model: Any, ids: Ints, mask: Ints, answer: Ints) -> tuple[Floats, Floats]:
    """What transformers says: the encoder's states, and logits of a whole answer."""
    source, kept, made = tensors(ids, mask, answer)
    with torch.no_grad():
        given = model(input_ids=source, attention_mask=kept, decoder_input_ids=made, use_cache=False)
    return given.encoder_last_hidden_state.numpy(), given.logits.numpy()


def farthest(found: Floats, expected: Floats) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


def edited(folder: Path, **changes: Any) -> Path:
    """Change config.json; what is None is taken out."""
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    kept = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_states_and_logits_equal_transformers(kind: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, **KINDS[kind])
    model, written = reference(folder), Written(folder)
    for side in ("right", "left"):
        ids, mask = sentences([5, 44, 1], side=side)
        answer = sentences([33] * 3, seed=1)[0]
        states, logits = told(model, ids, mask, answer)
        assert farthest(written.encode(ids, mask)[mask == 1], states[mask == 1]) <= LIMIT
        given, _ = written.step(written.source(ids, mask), answer, written.nothing(3))
        assert farthest(given, logits) <= LIMIT
        assert logits.std() > 0.2


@pytest.mark.parametrize("sizes", [[1] * 24, [7, 1, 16], [23, 1], [1, 23]], ids=str)
@pytest.mark.parametrize("kind", ["t5", "t5 1.1", "near"])
def test_an_answer_in_pieces_equals_the_whole(kind: str, sizes: Sequence[int], tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, **KINDS[kind])
    ids, mask = sentences([9, 30])
    answer = sentences([24] * 2, seed=1)[0]
    _, logits = told(reference(folder), ids, mask, answer)
    written = Written(folder)
    assert farthest(written.in_steps(written.source(ids, mask), answer, sizes), logits) <= LIMIT


def test_a_long_text_is_as_far_as_the_farthest(tmp_path: Path) -> None:
    """T5 has no largest length: beyond the farthest distance all are one."""
    folder = checkpoint(tmp_path)
    ids, mask = sentences([300, 170])
    answer = sentences([260] * 2, seed=1)[0]
    states, logits = told(reference(folder), ids, mask, answer)
    written = Written(folder)
    assert farthest(written.encode(ids, mask)[mask == 1], states[mask == 1]) <= LIMIT
    assert farthest(written.in_steps(written.source(ids, mask), answer, [250, 10]), logits) <= LIMIT


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A T5 whose distances end at 20."""
    return Written(checkpoint(tmp_path_factory.mktemp("t5"), **NEAR))


SOURCES, ANSWERS = (6, 19, 1), (3, 25, 11)


@pytest.fixture(scope="module")
def alone(written: Written) -> list[tuple[Arrays, Floats, Arrays]]:
    """Of each row by itself: its source, the logits of its answer and one token more, and the cache before that."""
    rows = []
    for row, (source, length) in enumerate(zip(SOURCES, ANSWERS, strict=True)):
        ids, mask = sentences([source], seed=row)
        answer = sentences([length + 1], seed=10 + row)[0]
        given = written.source(ids, mask)
        logits, past = written.step(given, answer[:, :-1], written.nothing())
        last, _ = written.step(given, answer[:, -1:], past)
        rows.append((given, np.concatenate([logits, last], axis=1)[0], past))
    return rows


def batch(written: Written) -> tuple[Arrays, list[Ints]]:
    """All sources padded to the longest, and every answer."""
    ids, mask = sentences(SOURCES)
    for row, length in enumerate(SOURCES):
        ids[row, :length] = sentences([length], seed=row)[0][0]
    answers = [sentences([n + 1], seed=10 + row)[0][0] for row, n in enumerate(ANSWERS)]
    return written.source(ids, mask), answers


def padded(rows: Sequence[NDArray[Any]], axis: int, fill: float) -> NDArray[Any]:
    """Rows side by side, each filled up on its left."""
    width = max(row.shape[axis] for row in rows)

    def widened(row: NDArray[Any]) -> NDArray[Any]:
        gaps = [(width - row.shape[axis] if at == axis else 0, 0) for at in range(row.ndim)]
        return np.pad(row, gaps, constant_values=fill)

    return np.stack([widened(row) for row in rows])


def test_rows_of_different_pasts_in_one_batch_equal_each_alone(
    written: Written, alone: list[tuple[Arrays, Floats, Arrays]]
) -> None:
    """What lies in the padding of a cache is left from others, larger than any key here, and must not matter."""
    source, answers = batch(written)
    names = written.nothing()
    past: Arrays = {name: padded([row[2][name][0] for row in alone], 1, 50) for name in names}
    mask = padded([np.ones(length + 1, np.int64) for length in ANSWERS], 0, 0)
    last = np.array([answer[-1:] for answer in answers])
    found, _ = written.step(source, last, past, mask)
    for row, (_, logits, _) in enumerate(alone):
        assert farthest(found[row, 0], logits[-1]) <= LIMIT


@pytest.mark.parametrize("side", ["left", "right"])
def test_answers_padded_on_a_side_equal_each_alone(
    side: str, written: Written, alone: list[tuple[Arrays, Floats, Arrays]]
) -> None:
    """The report unslothai/unsloth#4078: positions are the running sum of the mask; a gap in a cache counts nothing."""
    source, answers = batch(written)
    _, mask = sentences(ANSWERS, side=side)
    ids = np.zeros_like(mask)
    for row, answer in enumerate(answers):
        ids[row, mask[row] == 1] = answer[:-1]
    first, past = written.step(source, ids, written.nothing(3), mask)
    longer = np.concatenate([mask, np.ones((3, 1), np.int64)], axis=1)
    last, _ = written.step(source, np.array([answer[-1:] for answer in answers]), past, longer)
    for row, (_, logits, _) in enumerate(alone):
        assert farthest(first[row, mask[row] == 1], logits[:-1]) <= LIMIT
        assert farthest(last[row, 0], logits[-1]) <= LIMIT


def test_a_source_without_tokens_stays_finite_and_leaves_the_others_alone(written: Written) -> None:
    source, answers = batch(written)
    ids = np.stack([answer[:3] for answer in answers])
    whole, _ = written.step(source, ids, written.nothing(3))
    given, mask = sentences(SOURCES)
    for row, length in enumerate(SOURCES):
        given[row, :length] = sentences([length], seed=row)[0][0]
    mask[1] = 0
    found, _ = written.step(written.source(given, mask), ids, written.nothing(3))
    assert np.isfinite(found).all()
    assert farthest(found[[0, 2]], whole[[0, 2]]) <= LIMIT


@pytest.mark.parametrize("both_sides", [True, False])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (12, 20), (4, 3), (64, 1000), (33, 77)])
def test_buckets_are_those_of_transformers(buckets: int, most: int, both_sides: bool) -> None:
    distances = np.arange(-3 * most, 3 * most)
    attention = importlib.import_module("transformers.models.t5.modeling_t5").T5Attention
    expected = attention._relative_position_bucket(torch.from_numpy(distances), both_sides, buckets, most)
    found = bucket(distances, buckets=buckets, farthest=most, both_sides=both_sides)
    assert np.array_equal(found, expected.numpy())
    # So a table that ends at the farthest distance says all there is.
    end = bucket(np.array([-most]), buckets=buckets, farthest=most, both_sides=both_sides)
    assert set(found[distances <= -most]) == set(end)


@pytest.mark.parametrize(
    ("said", "scaled"),
    [
        ({"tie_word_embeddings": True}, True),
        ({"tie_word_embeddings": None}, True),
        ({"tie_word_embeddings": False}, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False),
        ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, True),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_a_head_is_scaled_as_config_says_and_tied_as_weights_say(
    said: dict[str, Any], scaled: bool, tied: bool, tmp_path: Path
) -> None:
    folder = edited(checkpoint(tmp_path, tied=tied), **{"scale_decoder_outputs": None, **said})
    assert settings_of(folder).scaled == scaled
    ids, mask = sentences([9])
    answer = sentences([6], seed=1)[0]
    _, logits = told(reference(folder), ids, mask, answer)
    written = Written(folder)
    assert farthest(written.in_steps(written.source(ids, mask), answer, [6]), logits) <= LIMIT


@pytest.mark.parametrize("form", ["relu", "gelu", "gated-gelu", "gated-silu"])
def test_one_word_says_what_the_feed_forward_layer_is(form: str, tmp_path: Path) -> None:
    """Files that transformers saved lately say more, which those of the hub do not."""
    folder = checkpoint(tmp_path, feed_forward_proj=form)
    edited(folder, dense_act_fn=None, is_gated_act=None)
    ids, mask = sentences([9])
    states, _ = told(reference(folder), ids, mask, ids)
    assert farthest(Written(folder).encode(ids, mask), states) <= LIMIT


def weights_of(folder: Path, name: str) -> dict[str, Floats]:
    """The floats that a part stores, tables of distances left out."""
    values = part(folder, name).graph.initializers.values()
    stored = {str(v.name): v.const_value.numpy() for v in values if v.const_value is not None}
    return {
        key: array for key, array in stored.items() if array.dtype == np.float32 and key.endswith(".weight")
    }


def test_a_tied_embedding_is_stored_once(tmp_path: Path) -> None:
    """The report huggingface/optimum#1326; what two parts need is of one name and the same in both."""
    folder = checkpoint(tmp_path / "tied")
    given = load_file(folder / "model.safetensors")
    stored = {name: weights_of(folder, name) for name in PARTS}
    for name in ("encoder", "decoder"):
        large = [array.shape for array in stored[name].values() if VOCAB in array.shape]
        assert large == [(VOCAB, SIZES["d_model"])]
    once = {key: array for each in stored.values() for key, array in each.items()}
    assert sum(array.size for array in once.values()) == sum(
        array.size for key, array in given.items() if "relative_attention_bias" not in key
    )
    assert np.array_equal(stored["encoder"]["shared.weight"], stored["decoder"]["shared.weight"])
    assert not stored["cross"].keys() & (stored["encoder"].keys() | stored["decoder"].keys())


def test_copies_of_the_embedding_in_a_file_are_one(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    given = load_file(folder / "model.safetensors")
    copies = ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    given.update(dict.fromkeys(copies, given["shared.weight"]))
    save_file(given, folder / "model.safetensors", metadata={"format": "pt"})
    assert {name for name in weights_of(folder, "decoder") if "block" not in name} == {
        "shared.weight",
        "decoder.final_layer_norm.weight",
    }
    given[copies[2]] = given[copies[2]] * 2
    save_file(given, folder / "model.safetensors", metadata={"format": "pt"})
    message = r"^decoder.embed_tokens.weight differs from shared.weight; the graphs have one embedding"
    with pytest.raises(InputError, match=message):
        part(folder, "encoder")


@pytest.mark.parametrize("opset", [23, 24])
def test_every_attention_is_one_operator(opset: int, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    counts = {"encoder": SIZES["num_layers"], "cross": 0, "decoder": 2 * SIZES["num_decoder_layers"]}
    for name, count in counts.items():
        model = part(folder, name, opset)
        kinds = Counter(node.op_type for node in model.graph)
        assert (kinds["Attention"], kinds["Softmax"]) == (count, 0)
        assert model.opset_imports == {"": opset}


def test_axes_that_vary_have_names(tmp_path: Path) -> None:
    encoder, cross, decoder = parts(settings_of(checkpoint(tmp_path)))
    assert (encoder.axes, cross.axes) == (("batch", "source"), ("batch", "source"))
    assert decoder.axes == ("batch", "length", "total", "source", "answers", "past")
    assert [str(spec) for spec in decoder.inputs[:6]] == [
        "input_ids=int64[batch,length]",
        "position_ids=int64[batch,length]",
        "attention_mask=int64[batch,total]",
        "encoder_attention_mask=int64[batch,source]",
        "answers=int64[answers]",
        "cross.0.key=float32[batch,4,source,8]",
    ]
    assert cross.outputs == decoder.inputs[5:11]
    assert [spec.name for spec in decoder.outputs[:3]] == ["logits", "present.0.key", "present.0.value"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "model_type is 'bert', expected one of: t5, mt5"),
        ({"architectures": ["T5EncoderModel"]}, "T5EncoderModel has no graphs; those that have: T5For"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder is False, which no graph is written for"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}, which no graph"),
        ({"feed_forward_proj": "relu-gelu"}, "feed_forward_proj: is 'relu-gelu', expected an activation"),
        ({"feed_forward_proj": "sine", "dense_act_fn": None}, "activation 'sine' is not one of: gelu"),
        ({"d_kv": 0}, "config.json.d_kv: is 0, expected at least 1"),
        ({"relative_attention_num_buckets": 3}, "relative_attention_num_buckets: is 3, expected at least 4"),
        (
            {"relative_attention_max_distance": 16},
            "max_distance: is 16, expected more than 16, the distances",
        ),
        ({"vocab_size": 39}, r"shared.weight has 41 rows, config.json says 39 \(vocab_size\)"),
        ({"num_layers": 3}, "the checkpoint has no weight 'encoder.block.2.layer.0.layer_norm.weight'"),
        ({"num_layers": 1}, r"has 2 layers in encoder.block.\*, its config.json calls for 1 \(num_layers\)"),
        ({"d_ff": 41}, r"wi.weight is 40 x 24, its config.json calls for 41 x 24"),
    ],
    ids=str,
)
def test_what_no_graph_is_written_for_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = edited(checkpoint(tmp_path), **changes)
    with pytest.raises(InputError, match=message):
        part(folder, "encoder")


@pytest.mark.parametrize("name", ["cross", "decoder"])
def test_fewer_layers_than_the_weights_have_are_refused(name: str, tmp_path: Path) -> None:
    folder = edited(checkpoint(tmp_path), num_decoder_layers=1)
    with pytest.raises(InputError, match=r"in decoder.block.\*, .* for 1 \(num_decoder_layers\)"):
        part(folder, name)


def test_a_part_or_an_opset_that_there_is_none_of_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    with pytest.raises(InputError, match=r"^no part 'step'; T5 has \['encoder', 'cross', 'decoder'\]$"):
        part(folder, "step")
    with pytest.raises(InputError, match="opset 22 is not one that graphs are written in"):
        part(folder, "encoder", 22)


PROMPTS = (
    "translate English to German: The house is wonderful.",
    "summarize: The agent opened the config file, fixed the broken database URL and re-ran the migrations.",
    "translate English to French: I would like a cup of coffee, please, and two slices of the cake.",
)


def test_trained_weights_say_what_transformers_says(flan_t5_folder: Path) -> None:
    folder = flan_t5_folder
    model, written = reference(folder), Written(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="np")["input_ids"].astype(np.int64)
        with torch.no_grad():
            expected = model.generate(torch.from_numpy(ids), max_new_tokens=32, do_sample=False)[0].tolist()
        assert written.greedy(ids, 32) == expected, prompt
    ids = tokenizer(PROMPTS[0], return_tensors="np")["input_ids"].astype(np.int64)
    said = tokenizer.decode(written.greedy(ids, 32), skip_special_tokens=True)
    assert said == "Das Haus ist wunderbar."
    assert open_checkpoint(str(folder)).config["tie_word_embeddings"] is False
