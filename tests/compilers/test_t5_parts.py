"""The parts of a T5 as engines get them: compiled by TensorRT-RTX, run by OpenVINO, and in fp16 without overflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import openvino
import pytest
import torch
from oldest import refusals
from rtx import compiled
from safetensors.numpy import load_file, save_file
from tiny_t5 import (
    PARTS,
    VOCAB,
    Arrays,
    Floats,
    Written,
    checkpoint,
    part,
    reference,
    run,
    sentences,
    session_of,
    settings_of,
)
from tokenizers import Tokenizer

from alula.graphs import beyond_fp16, observe_magnitudes, passes_for, rewrite, save

# Heads of 32, which TensorRT has a kernel for; a cache may be empty.
WIDE: dict[str, Any] = {"d_kv": 32, "num_heads": 2, "d_model": 48}
PROFILE = {
    "batch": (1, 2, 4),
    "source": (1, 8, 300),
    "length": (1, 4, 16),
    "past": (0, 8, 64),
    "total": (1, 12, 80),
    "answers": (1, 1, 16),
}
FP16, FP32 = ir.DataType.FLOAT16, ir.DataType.FLOAT


@pytest.fixture(scope="module", params=["t5", "t5 1.1"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tied head, and one with a head of its own."""
    settings: dict[str, Any] = (
        {} if request.param == "t5" else {"tied": False, "feed_forward_proj": "gated-gelu"}
    )
    return checkpoint(tmp_path_factory.mktemp("t5"), **WIDE, **settings)


def shapes(model: ir.Model) -> dict[str, list[list[int]]]:
    """Smallest, usual and largest shape of every input."""
    return {
        str(value.name): [
            [dim if isinstance(dim, int) else PROFILE[str(dim.value)][at] for dim in value.shape or ()]
            for at in range(3)
        ]
        for value in model.graph.inputs
    }


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("name", PARTS)
def test_a_part_compiles_with_a_kernel_for_every_attention(
    name: str, precision: str, folder: Path, tmp_path: Path
) -> None:
    graph = rewrite(part(folder, name), passes_for("tensorrt-rtx", precision))
    saved = save(graph, tmp_path / "graph.onnx", precision)
    s = settings_of(folder)
    attentions = {"encoder": s.encoder_layers, "cross": 0, "decoder": 2 * s.decoder_layers}
    assert compiled(saved.path, shapes(graph)).attentions == attentions[name]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_parts_in_the_words_of_tensorrt_8_6(precision: str, folder: Path, tmp_path: Path) -> None:
    written = Written(folder)
    for name, feeds in calls(written):
        graph = rewrite(part(folder, name), passes_for("tensorrt", precision, 17))
        assert refusals(graph) == []
        onnx.checker.check_model(ir.to_proto(graph), full_check=True)
        given = run(session_of(graph), as_declared(graph, feeds))
        for output, expected in run(written.sessions[name], feeds).items():
            # A past comes back as wide as it was.
            past = feeds.get(output.replace("present", "past"))
            wanted = expected if past is None else expected[:, :, expected.shape[2] - past.shape[2] :]
            assert given[output].shape == wanted.shape
            if wanted.size:
                assert error(given[output], wanted) < {"fp32": 1e-5, "fp16": 5e-3}[precision]
    saved = save(graph, tmp_path / "decoder.onnx", precision)
    assert compiled(saved.path, shapes(graph)).attentions == 0


def as_declared(model: ir.Model, feeds: Arrays) -> Arrays:
    """Caches in the precision that a graph has them in."""
    types = {str(value.name): value.dtype.numpy() for value in model.graph.inputs if value.dtype is not None}
    return {name: value.astype(types[name]) for name, value in feeds.items()}


def calls(written: Written) -> Iterator[tuple[str, Arrays]]:
    """A call of every part, of the decoder at the start and with a past."""
    ids, mask = sentences([7, 30, 3])
    yield "encoder", {"input_ids": ids, "attention_mask": mask}
    yield "cross", {"states": written.encode(ids, mask)}
    source, answer = written.source(ids, mask), sentences([5] * 3, seed=1)[0]
    _, past = written.step(source, answer, written.nothing(3))
    for length, cache in ((0, written.nothing(3)), (5, past)):
        own = {
            "input_ids": answer,
            "position_ids": np.tile(np.arange(length, length + 5), (3, 1)),
            "attention_mask": np.ones((3, length + 5), np.int64),
            "answers": np.arange(5),
        }
        yield "decoder", {**own, **source, **cache}


@pytest.mark.parametrize("rewritten", [True, False])
def test_openvino_gives_what_onnxruntime_gives(rewritten: bool, folder: Path) -> None:
    written, core = Written(folder), openvino.Core()
    for name, feeds in calls(written):
        model = part(folder, name)
        if rewritten:
            model = rewrite(model, passes_for("openvino", "fp32"))
        read = core.read_model(ir.to_proto(model).SerializeToString())
        found = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(feeds)
        for output, expected in run(written.sessions[name], feeds).items():
            np.testing.assert_allclose(found[output], expected, atol=3e-5, err_msg=f"{name} {output}")


def half(model: ir.Model, keep: frozenset[str] = frozenset()) -> ir.Model:
    """Rounded to fp16 after every node, as a GPU would."""
    return rewrite(model, passes_for("onnxruntime", "fp16", keep=keep))


def kept(model: ir.Model, feeds: Arrays) -> frozenset[str]:
    """What is measured beyond fp16."""
    observed, names = observe_magnitudes(model)
    measured = run(session_of(observed), feeds)
    output_names = [value.name for value in observed.graph.outputs][-len(names) :]
    return beyond_fp16(
        model, {name: float(measured[str(at)]) for name, at in zip(names, output_names, strict=True)}
    )


HIDDEN = 66246.39
"""What the report huggingface/transformers#5651 saw in front of an output projection; fp16 ends at 65504."""


def swollen(folder: Path, layer: str, feeds: Arrays) -> dict[str, Floats]:
    """Make the largest of what `wo` takes in one layer that of the report; what transformers then gives.

    What `wo` gives is held down a little, as fp16 has to hold it as well.
    """
    given = [torch.from_numpy(feeds[name]) for name in ("input_ids", "attention_mask", "answer")]
    names = ("input_ids", "attention_mask", "decoder_input_ids")
    model, seen = reference(folder), [0.0]
    module = model.get_submodule(layer)
    module.wo.register_forward_pre_hook(lambda _, taken: seen.append(float(taken[0].abs().max())))
    with torch.no_grad():
        model(**dict(zip(names, given, strict=True)))
    weights = load_file(folder / "model.safetensors")
    wide = "wi_1" if hasattr(module, "wi_1") else "wi"
    weights[f"{layer}.{wide}.weight"] *= np.float32(HIDDEN / seen[-1])
    weights[f"{layer}.wo.weight"] /= np.float32(64)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        made = reference(folder)(**dict(zip(names, given, strict=True)))
    return {"states": made.encoder_last_hidden_state.numpy(), "logits": made.logits.numpy()}


@pytest.mark.parametrize(("form", "first"), [("relu", "wi/Relu"), ("gated-gelu", "wi_1/MatMul")])
@pytest.mark.parametrize("layer", ["encoder.block.1.layer.1", "decoder.block.1.layer.2"])
def test_a_feed_forward_beyond_65504_is_found_and_stays_finite(
    form: str, first: str, layer: str, tmp_path: Path
) -> None:
    folder, at = checkpoint(tmp_path, feed_forward_proj=form), f"{layer}.DenseReluDense"
    ids, mask = sentences([9, 9])
    answer = sentences([9, 9], seed=1)[0]
    told = swollen(folder, at, {"input_ids": ids, "attention_mask": mask, "answer": answer})
    written = Written(folder)
    places = np.tile(np.arange(9), (2, 1))
    own = {
        "input_ids": answer,
        "position_ids": places,
        "attention_mask": np.ones_like(answer),
        "answers": np.arange(9),
    }
    name, output, feeds = {
        "encoder": ("encoder", "states", {"input_ids": ids, "attention_mask": mask}),
        "decoder": ("decoder", "logits", {**own, **written.source(ids, mask), **written.nothing(2)}),
    }[layer.partition(".")[0]]
    assert error(run(written.sessions[name], feeds)[output], told[output]) < 1e-5
    model = part(folder, name)
    keep = kept(model, feeds)
    assert {f"{at}.{first}", f"{at}.wo/MatMul"} <= keep
    assert all(each.startswith(at) for each in keep)
    assert error(run(session_of(half(model, keep)), feeds)[output], told[output]) < 4e-3
    assert not np.isfinite(run(session_of(half(model)), feeds)[output]).all()
    graph = rewrite(model, passes_for("tensorrt-rtx", "fp16", keep=keep))
    assert {node.outputs[0].dtype for node in graph.graph if node.name in keep} == {FP32}


def test_trained_weights_outgrow_fp16_and_stay_finite(flan_t5_folder: Path) -> None:
    """FLAN-T5-small's encoder measures above 65504 on any sentence: such layers are real."""
    folder = flan_t5_folder
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = np.array([tokenizer.encode("translate English to German: The house is wonderful.").ids])
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    model = part(folder, "encoder")
    expected = run(session_of(model), feeds)["states"]
    keep = kept(model, feeds)
    assert {name.rpartition(".")[2] for name in keep} <= {"wi_1/MatMul", "wo/MatMul", "DenseReluDense/Mul"}
    assert error(run(session_of(half(model, keep)), feeds)["states"], expected) < 4e-3
    assert not np.isfinite(run(session_of(half(model)), feeds)["states"]).all()


def error(found: Floats, expected: Floats) -> float:
    """As a share of the length of what was expected."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def test_a_norm_of_a_row_of_300_is_its_weight(tmp_path: Path) -> None:
    """The report pytorch/pytorch#133085: 300 * 300 is infinite in fp16, and the row became zeros."""
    folder = checkpoint(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["shared.weight"][:] = 300
    for name in weights:
        if name.endswith((".o.weight", ".wo.weight")):
            weights[name][:] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    ids, mask = sentences([4])
    expected = np.tile(weights["encoder.final_layer_norm.weight"], (1, 4, 1))
    for model in (part(folder, "encoder"), half(part(folder, "encoder"))):
        states = run(session_of(model), {"input_ids": ids, "attention_mask": mask})["states"]
        np.testing.assert_allclose(states, expected, rtol=1e-3)
    for name in ("encoder", "decoder"):
        graph = rewrite(part(folder, name), passes_for("tensorrt-rtx", "fp16")).graph
        norms = [node for node in graph if node.op_type == "RMSNormalization"]
        assert {value.dtype for node in norms for value in (node.inputs[0], *node.outputs) if value} == {FP32}


def test_an_embedding_is_stored_once_in_fp16_too(folder: Path) -> None:
    """Tied, the head reads it as well; a head of its own is another table, the other way round."""
    tied = not any("lm_head" in name for name in load_file(folder / "model.safetensors"))
    for name in ("encoder", "decoder"):
        graph = rewrite(part(folder, name), passes_for("tensorrt-rtx", "fp16")).graph
        tables = [
            value.dtype
            for value in graph.initializers.values()
            if value.shape in ((VOCAB, WIDE["d_model"]), (WIDE["d_model"], VOCAB))
        ]
        assert tables == [FP16] * (1 if tied or name == "encoder" else 2)


def test_keys_and_values_are_fp16_where_a_gpu_keeps_them(folder: Path) -> None:
    """They go out as they come in, and nothing casts them between."""
    for name in ("cross", "decoder"):
        graph = rewrite(part(folder, name), passes_for("tensorrt-rtx", "fp16")).graph
        products = {node.outputs[0].dtype for node in graph if node.op_type == "MatMul"}
        assert products == {FP16}
        kinds = {str(value.name).split(".")[0]: value.dtype for value in (*graph.inputs, *graph.outputs)}
        kept = {"cross", "past", "present"} & kinds.keys()
        assert {kinds.pop(each) for each in kept} == {FP16}
        assert set(kinds.values()) <= {FP32, ir.DataType.INT64}
        cast = {str(value.name) for node in graph if node.op_type == "Cast" for value in node.inputs if value}
        assert not [each for each in cast if each.startswith(("past.", "cross.", "present."))]


def test_a_key_that_does_not_fit_keeps_all_caches_fp32(folder: Path) -> None:
    key = "decoder.block.0.layer.0.SelfAttention.k/MatMul"
    graph = rewrite(part(folder, "decoder"), passes_for("tensorrt-rtx", "fp16", keep=frozenset({key}))).graph
    kept = [
        value for value in (*graph.inputs, *graph.outputs) if str(value.name).startswith(("past", "pres"))
    ]
    assert {value.dtype for value in kept} == {FP32}
