"""Decoders on OpenVINO with a cache in pages: what each family gives is what its graph gives in ONNX Runtime."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import tiny_t5
import tiny_writers
from numpy.typing import NDArray
from tiny_decoders import SIZES, Decoder, checkpoint, opened, session_of, tokens

from alula.core.decoding import Decoding, Room, Work
from alula.core.engine import LAYERS, Engine, Plan
from alula.core.errors import CompileError, EngineError, RunError
from alula.core.machine import cpu_features, usable_cores
from alula.core.profile import Profile
from alula.engines import backend, cache_cost, open_decoding
from alula.engines.openvino import OpenVino, layers_of, settings
from alula.engines.paged import session as paged
from alula.engines.paged.forms import fix, stack
from alula.engines.paged.graph import read
from alula.engines.paged.session import Paged, Way, ways
from alula.engines.paged.session import compiled as compiled_form
from alula.graphs import pack, passes_for, rewrite, save

Floats = NDArray[np.float32]

ROOM = Room(sequences=6, blocks=30, block_tokens=16)
LIMIT = 2e-5
"""Of the largest logit: another order of sums, all of them in fp32."""

FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "one key for each query": ("llama", {"num_key_value_heads": 6, "head_dim": 8}),
    "one key for all queries": ("llama", {"num_key_value_heads": 1}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "hunyuan": ("hunyuan_v1_dense", {}),
}


def compiled(decoder: Decoder, folder: Path, precision: str = "fp32") -> Engine:
    written = rewrite(decoder.graph.clone(), passes_for("openvino", precision))
    graph = save(written, folder / f"{precision}.onnx", precision)
    axes = {dim for spec in graph.inputs for dim in spec.shape if isinstance(dim, str)}
    plan = Plan(profile=Profile({axis: tiny_writers.AXES[axis] for axis in axes}))
    return OpenVino().compile(graph, plan, folder / f"{precision}.engine")


def made(folder: Path, name: str = "llama") -> tuple[Decoder, Engine]:
    model_type, changes = FAMILIES[name]
    decoder = opened(folder, checkpoint(folder, model_type, **changes))
    return decoder, compiled(decoder, folder)


def session(engine: Engine, room: Room = ROOM) -> Decoding:
    return open_decoding({"decoder": engine}, room, threads=1)


def run(given: Decoding, *chunks: tuple[int, NDArray[np.int64]]) -> Floats:
    return given.step([Work(sequence=each, tokens=tuple(ids.tolist()), answers=True) for each, ids in chunks])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, Engine]:
    return made(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def small(llama: tuple[Decoder, Engine]) -> Iterator[Decoding]:
    opened_session = session(llama[1])
    yield opened_session
    opened_session.close()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gives_what_its_graph_gives_whole_and_in_chunks(tmp_path: Path, name: str) -> None:
    decoder, engine = made(tmp_path, name)
    ids = tokens(3, 40)
    expected = decoder.expected(ids)
    limit = LIMIT * np.abs(expected).max()
    given = session(engine)
    assert isinstance(given, Paged)
    for each in range(3):
        given.start(each)
    # One prompt whole, one in chunks that end beside the edge of a page, one token by token.
    at = {0: [40], 1: [31, 2, 7], 2: [1] * 40}
    places = dict.fromkeys(at, 0)
    while moving := {each: sizes for each, sizes in at.items() if sizes}:
        sizes = {each: counts.pop(0) for each, counts in moving.items()}
        logits = run(
            given, *((each, ids[each, places[each] : places[each] + n]) for each, n in sizes.items())
        )
        for row, (each, count) in zip(logits, sizes.items(), strict=True):
            places[each] += count
            assert np.abs(row - expected[each, places[each] - 1]).max() < limit, (each, places[each])
    assert set(places.values()) == {40}
    given.close()


def test_who_joins_or_leaves_changes_no_bit_of_the_others(llama: tuple[Decoder, Engine]) -> None:
    """Where a step has as many tokens: how many there are decides in which order products are summed."""
    ids = tokens(4, 30)

    def told(company: int) -> list[Floats]:
        given = session(llama[1])
        for each in (0, company):
            given.start(each)
        run(given, (company, ids[company, :9]))
        found = [run(given, (0, ids[0, :12]), (company, ids[company, 9:12]))[0]]
        found.append(run(given, (0, ids[0, 12:13]), (company, ids[company, 12:13]))[0])
        given.close()
        return found

    for one, other in zip(told(1), told(2), strict=True):
        assert (one == other).all()
        assert np.abs(one).max() > 0.5


def test_pages_of_the_released_are_used_again_and_what_was_in_them_is_not(
    llama: tuple[Decoder, Engine],
) -> None:
    decoder, engine = llama
    room = Room(sequences=2, blocks=2, block_tokens=32)
    given, ids = session(engine, room), tokens(8, 33)
    expected = decoder.expected(ids)
    for each in range(8):
        given.start(each)
        run(given, (each, ids[each, :32]))
        logits = run(given, (each, ids[each, 32:]))
        assert np.abs(logits[0] - expected[each, -1]).max() < LIMIT * np.abs(expected).max()
        given.start(each + 100)
        with pytest.raises(RunError, match="the step takes 3 blocks of the cache; there is room for 2"):
            run(given, (each + 100, ids[0, :1]))
        given.release(each)
        given.release(each + 100)
    given.close()


def test_numbers_that_are_none_stay_with_their_sequence(tmp_path: Path) -> None:
    """Blaizzy/mlx-vlm#1163: NaN of one answer; they are in the pages that the next one gets, too."""
    model = checkpoint(tmp_path, "llama", num_hidden_layers=1)
    model.model.embed_tokens.weight.data[60] = np.nan
    model.save_pretrained(tmp_path)
    decoder = opened(tmp_path, model)
    given, ids = (
        session(compiled(decoder, tmp_path), Room(sequences=2, blocks=4, block_tokens=32)),
        tokens(2, 40),
    )
    ids[ids == 60] = 3
    expected = decoder.expected(ids)
    limit = LIMIT * np.abs(expected).max()
    given.start(0)
    given.start(1)
    bad = run(given, (0, np.full(40, 60)), (1, ids[0, :20]))
    assert np.isnan(bad[0]).all()
    assert np.abs(bad[1] - expected[0, 19]).max() < limit
    given.release(0)
    given.start(0)
    good = run(given, (0, ids[1]), (1, ids[0, 20:]))
    assert np.abs(good - expected[[1, 0], -1]).max() < limit
    given.close()


@pytest.mark.parametrize("token", [61, -1])
def test_a_token_that_there_is_not_is_refused(small: Decoding, token: int) -> None:
    small.start(4)
    with pytest.raises(RunError, match=f"sequence 4: token {token}; expected 0 to 60"):
        run(small, (4, np.array([3, token, 5])))
    assert run(small, (4, np.array([3]))).shape == (1, 61)


class FromOutsideError(Exception):
    """What comes from outside while a step runs."""


def test_an_interrupted_step_loses_its_own_sequences_alone(small: Decoding) -> None:
    assert isinstance(small, Paged)
    for each in (0, 1):
        small.start(each)
        run(small, (each, np.array([3, 4])))
    working = small._run

    def interrupted(feeds: Any) -> Any:
        del feeds
        raise FromOutsideError

    small._run = interrupted  # type: ignore[method-assign] # an interrupt cannot be timed
    with pytest.raises(FromOutsideError):
        run(small, (0, np.array([5])))
    small._run = working  # type: ignore[method-assign] # likewise
    with pytest.raises(RunError, match="sequence 0 was lost in an error; release it and start it again"):
        run(small, (0, np.array([5])))
    assert np.isfinite(run(small, (1, np.array([5])))).all()
    small.release(0)
    small.start(0)
    assert np.isfinite(run(small, (0, np.array([5])))).all()


def test_weights_in_bf16_give_nearly_the_same(llama: tuple[Decoder, Engine], tmp_path: Path) -> None:
    decoder, _ = llama
    engine = compiled(decoder, tmp_path, "bf16")
    assert engine.graph.precision == "bf16"
    ids = tokens(2, 20)
    expected, given = decoder.expected(ids), session(engine)
    for each in range(2):
        given.start(each)
    logits = run(given, (0, ids[0]), (1, ids[1]))
    off = np.abs(logits - expected[:, -1]).max() / np.abs(expected).max()
    assert 1e-4 < off < 5e-2
    given.close()


def test_a_table_that_is_the_head_too_is_stored_in_bf16_once(tmp_path: Path) -> None:
    """huggingface/optimum#1326: a tied table was stored twice."""
    decoder, _ = made(tmp_path, "tied")
    graph = rewrite(decoder.graph.clone(), passes_for("openvino", "bf16")).graph
    halves = [each for each in graph.initializers.values() if each.dtype == ir.DataType.BFLOAT16]
    # Query, key and value are one.
    assert len(halves) == 1 + 5 * 2
    [table] = [each for each in halves if each.shape == (61, 48)]
    [(cast, _)] = table.uses()
    assert sorted(use.node.op_type for use in cast.outputs[0].uses()) == ["Gather", "Transpose"]
    floats = [each for each in graph.initializers.values() if each.dtype == ir.DataType.FLOAT]
    assert {tuple(each.shape or ()) for each in floats} <= {(48,), (64, 8), (), (1,)}


def test_what_has_an_encoder_to_look_at_is_written_out_and_computes_in_bf16_itself(tmp_path: Path) -> None:
    tiny_t5.checkpoint(tmp_path)
    decoder = tiny_t5.part(tmp_path, "decoder")
    assert any(node.op_type == "Attention" for node in decoder.graph)
    for precision in ("fp32", "bf16"):
        graph = rewrite(decoder.clone(), passes_for("openvino", precision)).graph
        assert not any(node.op_type == "Attention" for node in graph)
    halves = [node for node in graph if node.outputs[0].dtype == ir.DataType.BFLOAT16]
    assert any(node.op_type == "MatMul" for node in halves)


def test_each_precision_runs_in_the_forms_that_its_cpu_has() -> None:
    amx = ("avx512f", "avx512_bf16", "amx_bf16")

    def asked(precision: str, *features: str) -> list[tuple[object, ...]]:
        names = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE")
        found = ways(precision, features)
        return [(way.most, *(way.settings.get(name) for name in names)) for way in found]

    assert asked("fp32", *amx) == asked("fp32") == [(0, None, "f32", None)]
    assert asked("bf16", *amx) == [(0, "bf16", "bf16", None)]
    assert asked("bf16", "avx2") == [(0, None, "f32", None)]
    assert asked("int8-weights", "avx2") == [(0, None, "f32", 32)] * 2
    few = [(0, None, "bf16", 32), (32, None, "bf16", 32), (0, "bf16", "bf16", None)]
    assert asked("int4-weights", *amx) == asked("int8-weights", *amx) == few
    vnni = ("avx512f", "avx512_vnni", "avx512_bf16")
    eight_bits = [(0, None, "f32", 32), (0, None, "f32", 32), (0, None, "f32", 64)]
    assert asked("int8-weights", *vnni) == asked("int4-weights", "avx_vnni") == eight_bits
    assert asked("int4-weights", *vnni) == [(0, None, "f16", 32), (0, None, "f16", 32), (0, None, "f16", 64)]
    assert [way.widened for way in ways("int4-weights", ("avx_vnni",))] == [False, True, True]
    assert not any(way.widened or way.stacked for way in ways("int8-weights", ("avx_vnni",)))
    assert [way.stacked for way in ways("int4-weights", ("avx_vnni",))] == [True, False, False]
    assert not any(way.stacked for way in ways("int4-weights", amx))


def test_a_step_goes_to_the_form_that_is_for_its_rows() -> None:
    forms = ways("int4-weights", ("avx512_vnni",))

    def chosen(tokens: int, sequences: int) -> int:
        return next(way.rows for way in forms if way.runs(tokens, sequences))

    assert [chosen(count, count) for count in range(1, 11)] == [1, 0, 0, 0, 8, 8, 8, 8, 0, 0]
    assert chosen(8, 1) == chosen(8, 7) == chosen(512, 3) == 0


def test_zeros_of_four_bits_become_rows_and_gate_and_up_one_product(
    llama: tuple[Decoder, Engine], tmp_path: Path
) -> None:
    engine = _engine(pack(llama[0].graph, "openvino", "int4-weights"), tmp_path, "int4-weights")
    model = read(engine.graph.path, half=False)
    fix(model, 1)

    def kinds() -> Counter[str]:
        return Counter(node.get_type_name() for node in model.get_ordered_ops())

    before = kinds()
    stack(model)
    layers = before["PagedAttentionExtension"]
    # Of five linears in a layer, each with a product for its zeros, two become one; what they gave is cut in two.
    assert layers
    assert before["MatMul"] - kinds()["MatMul"] == (5 * 2 - 4) * layers
    assert kinds()["VariadicSplit"] - before["VariadicSplit"] == layers


def test_zeros_in_rows_are_what_they_were(
    llama: tuple[Decoder, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a single row of four bits each, logits are off by 0.12; in two by 0.0025."""
    engine = _engine(pack(llama[0].graph, "openvino", "int4-weights"), tmp_path, "int4-weights")
    exact = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    way = Way(rows=1, settings={**exact, "KV_CACHE_PRECISION": "f32"})
    ids, found = tokens(1, 20, seed=5), []
    for each in (way, replace(way, stacked=True)):
        monkeypatch.setattr(paged, "ways", lambda *_, each=each: (each,))
        given = session(engine)
        given.start(0)
        found.append(np.concatenate([run(given, (0, ids[0, at : at + 1])) for at in range(20)]))
        given.close()
    assert np.abs(found[1] - found[0]).max() < 0.01 * np.abs(found[0]).max()


@pytest.mark.parametrize("precision", ["int8-weights", "int4-weights"])
def test_packed_weights_give_the_same_by_one_token_by_few_and_by_many(
    llama: tuple[Decoder, Engine], tmp_path: Path, precision: str
) -> None:
    """The form for one token has fixed shapes; in that for many, zeros of four bits are where they belong."""
    decoder, _ = llama
    packed = pack(decoder.graph, "openvino", precision)
    expected = _in_onnxruntime(packed, decoder, ids := tokens(1, 46, seed=2))
    engine = _engine(packed, tmp_path, precision)
    for sizes in ([1] * 46, [20, 1, 24, 1], [45, 1]):
        given, at, off = session(engine), 0, []
        given.start(0)
        for size in sizes:
            row = run(given, (0, ids[0, at : at + size]))[0]
            at += size
            off.append(np.abs(row - expected[at - 1]).max() / np.abs(expected).max())
        given.close()
        # Activations in eight bits or bf16; a zero of four bits that is left out is off by more than 0.5.
        assert max(off) < 0.06, (sizes, off)


@pytest.mark.parametrize("precision", ["int8-weights", "int4-weights"])
def test_rows_side_by_side_give_the_same_whoever_fills_them_up(
    llama: tuple[Decoder, Engine], tmp_path: Path, precision: str
) -> None:
    """Five to eight sequences may have a form of fixed shapes, whose other rows are nobody's."""
    packed = pack(llama[0].graph, "openvino", precision)
    engine, ids = _engine(packed, tmp_path, precision), tokens(9, 24, seed=3)
    room = Room(sequences=9, blocks=18, block_tokens=16)
    given, other = session(engine, room), session(engine, room)
    assert isinstance(other, Paged)
    other._requests = [each for each in other._requests if each[0].rows < 2]
    for each in range(9):
        for one in (given, other):
            one.start(each)
            run(one, (each, ids[each, :15]))
    for at, rows in enumerate((9, 8, 6, 5, 3, 7, 1, 8, 5), start=15):
        chosen, left = [
            [(each, ids[each, at : at + 1]) for each in group] for group in (range(rows), range(rows, 9))
        ]
        got, expected = run(given, *chosen), run(other, *chosen)
        assert got.shape == expected.shape == (rows, 61)
        # Sums in another order, before activations are rounded; another row's logits are off by more than 0.5.
        assert np.abs(got - expected).max() < 0.06 * np.abs(expected).max(), (at, rows)
        if left:
            # Who was left out takes the same token now, so that all are as far.
            run(given, *left)
            run(other, *left)
    given.close()
    other.close()


def _in_onnxruntime(packed: ir.Model, decoder: Decoder, ids: NDArray[np.int64]) -> Floats:
    other = replace(decoder, graph=packed, session=session_of(packed))
    given: Floats = other.parts(ids, [ids.shape[1]])[0]
    return given


def _engine(packed: ir.Model, folder: Path, precision: str) -> Engine:
    graph = save(rewrite(packed, passes_for("openvino", precision)), folder / "packed.onnx", precision)
    axes = {dim for spec in graph.inputs for dim in spec.shape if isinstance(dim, str)}
    plan = Plan(profile=Profile({axis: tiny_writers.AXES[axis] for axis in axes}))
    return OpenVino().compile(graph, plan, folder / "engine")


@pytest.mark.skipif("amx_bf16" not in cpu_features(), reason="OpenVINO fuses it for AMX alone")
@pytest.mark.skipif(usable_cores() == 1, reason="nor for a thread by itself")
def test_a_feed_forward_in_bf16_is_one_operation_unless_a_thread_is_alone(tmp_path: Path) -> None:
    """OpenVINO 2026.4.1 ends the process where its one operation has one thread."""
    sizes = {"hidden_size": 96, "intermediate_size": 64}
    decoder = opened(tmp_path, checkpoint(tmp_path, "llama", **sizes))
    engine = compiled(decoder, tmp_path, "bf16")
    [way] = ways("bf16", cpu_features())
    for threads, fused in ((1, 0), (2, 2)):
        layers = layers_of(compiled_form(engine.graph, way, settings(threads)))
        assert [layer["layerType"] for layer in layers].count("LLMMLP") == fused
    expected, given = (
        decoder.expected(ids := tokens(1, 20)),
        open_decoding({"decoder": engine}, ROOM, threads=2),
    )
    given.start(0)
    off = np.abs(run(given, (0, ids[0])) - expected[:, -1]).max() / np.abs(expected).max()
    assert 1e-4 < off < 5e-2
    given.close()


def test_the_cache_costs_what_its_type_takes(llama: tuple[Decoder, Engine]) -> None:
    """Two layers, of keys and values, for two heads of 16 each."""
    assert cache_cost({"decoder": llama[1]}).token_bytes == 2 * 2 * 2 * 16 * 4
    assert cache_cost({"decoder": llama[1]}).sequence_bytes == 32 * 2 * 2 * 2 * 16 * 4


def test_an_engine_is_a_record_that_says_what_runs(llama: tuple[Decoder, Engine]) -> None:
    _, engine = llama
    assert sorted(path.name for path in engine.path.iterdir()) == ["engine.json", LAYERS]
    layers = json.loads((engine.path / LAYERS).read_text())["layers"]
    kinds = [layer["layerType"] for layer in layers]
    assert kinds.count("PagedAttention") == 2
    assert kinds.count("RoPE") == 4
    assert kinds.count("RMS") == 5
    assert kinds.count("FullyConnected") == 2 * 7 + 1
    with pytest.raises(
        EngineError, match=r"a decoder that keeps its cache; open it with engines\.open_decoding"
    ):
        backend("openvino").open(engine)


def test_attention_that_was_written_out_is_refused(llama: tuple[Decoder, Engine], tmp_path: Path) -> None:
    from alula.graphs.passes.attention import DecomposeAttention  # noqa: PLC0415 - nothing else needs it

    decoder, engine = llama
    graph = save(rewrite(decoder.graph.clone(), [DecomposeAttention()]), tmp_path / "graph.onnx", "fp32")
    with pytest.raises(CompileError, match="without Attention; its attention has been written out in parts"):
        OpenVino().compile(graph, engine.plan, tmp_path / "engine")


def _soften(node: ir.Node) -> None:
    node.attributes["softcap"] = ir.AttrFloat32("softcap", 30.0)


def _forget(node: ir.Node) -> None:
    joined = node.inputs[1]
    assert joined is not None
    producer = joined.producer()
    assert producer is not None
    node.replace_input_with(1, producer.inputs[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_soften, "Attention with softcap, which attention over pages does without"),
        (_forget, "Attention reads Add, expected the past with new tokens behind it"),
    ],
)
def test_what_pages_would_not_honour_is_refused(
    llama: tuple[Decoder, Engine], tmp_path: Path, change: Callable[[ir.Node], None], message: str
) -> None:
    decoder, engine = llama
    model = decoder.graph.clone()
    change(next(node for node in model.graph if node.op_type == "Attention"))
    graph = save(model, tmp_path / "graph.onnx", "fp32")
    with pytest.raises(CompileError, match=message):
        OpenVino().compile(graph, engine.plan, tmp_path / "engine")


def test_an_engine_of_another_machine_is_compiled_again(llama: tuple[Decoder, Engine]) -> None:
    with pytest.raises(EngineError, match="compile it again from its graph"):
        session(replace(llama[1], target="openvino 2020.1 x86_64"))


def test_closing_twice_is_closing(llama: tuple[Decoder, Engine]) -> None:
    given = session(llama[1])
    given.start(0)
    given.close()
    given.close()
    with pytest.raises(RunError, match="session is closed"):
        run(given, (0, np.array([1])))
    given.release(0)


def test_two_forms_share_one_cache(llama: tuple[Decoder, Engine]) -> None:
    """Few tokens run in another form than many; what one of them wrote the other reads."""
    if "amx_bf16" not in cpu_features():
        pytest.skip("one form is all that this CPU has")
    decoder, engine = llama
    # The graph's weights are fp32; that is no matter to the forms.
    packed = replace(engine, graph=replace(engine.graph, precision="int8-weights"))
    given, ids = session(packed), tokens(1, 48)
    expected = decoder.expected(ids)[0]
    limit = 3e-2 * np.abs(expected).max()
    given.start(0)
    at = 0
    for size in (40, 1, 1, 3, 3):
        logits = run(given, (0, ids[0, at : at + size]))
        at += size
        assert np.abs(logits[0] - expected[at - 1]).max() < limit, at
    assert at == 48 == tiny_writers.AXES["total"].max <= SIZES["max_position_embeddings"]
    given.close()
