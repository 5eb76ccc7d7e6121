"""A decoding session on OpenVINO with a cache in pages: whoever moves in a step, by whatever count, is in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import openvino as ov

from alula.core.decoding import NOTHING_GIVEN, Cost, Logits, Room, Work
from alula.core.engine import Engine
from alula.core.errors import CompileError, EngineError, InputError, RunError
from alula.core.graph import Graph
from alula.core.machine import cpu_features, usable_cores
from alula.core.tensor import Array, Feeds
from alula.engines.foreign import said
from alula.engines.paged.forms import fix, join, stack, turn, widen
from alula.engines.paged.graph import read
from alula.engines.paged.pages import Pages, filled
from alula.engines.sights import Sights

DEVICE = "CPU"
PAGE_TOKENS = 32
"""OpenVINO's own on CPUs; a session reads it off the compiled model."""

_GROUP = 32
_FEW: Mapping[str, int] = {"int8-weights": 32, "int4-weights": 32}
"""Up to so many tokens in a step, packed weights are faster without AMX than with it in bf16.

SmolLM2-135M on two threads of a Xeon with AMX (model 207), milliseconds, medians of interleaved steps on a shared host:
                                                        1 token  8 x 1
  int8, seven linears a layer                              19.8   23.8
  int8, query, key and value in one                        17.9   23.3
  the same, shapes fixed                                   15.6   22.1   a form for eight alone is not made
  int4, zeros in the weights                               23.3   37-49
  int4, zeros apart; shapes fixed                    20.6; 16.4     34
"""

_MANY_GROUP = 64
"""Of activations of many tokens where there is no AMX, which are the blocks of weights in eight bits.

SmolLM2-135M on two threads of a Zen 5, milliseconds, medians of interleaved steps on a busy host:
                                                         1 token   8 x 1   512
  int4, zeros apart, groups of 32                            8.5      19   404
  int4 as eight bits, groups of 32                           7.3    13.0   208
  int8, groups of 32                                         7.2    12.8   227
  linears of int8 alone, groups of 32; of 64          4.4; 4.0  5.5; 4.7   109; 87
In the whole decoder eight rows are slower in groups of 64 all the same. A single token of four bits keeps them: less to
read, which is what large models wait for.
"""
_SIDE_BY_SIDE, _LEAST = 8, 5
"""How many sequences the form for several has, and from how many on it is worth it, filled up with nobody's rows."""
_MULTIPLIES_EIGHT_BITS = frozenset({"avx512_vnni", "avx_vnni"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """How one compiled form of a decoder computes, and for how many tokens in a step: up to `most`, 0 for any number.

    With `rows` it has fixed shapes: a token of each of so many sequences, or of `least` and rows that are nobody's.
    With `turned` weights in bf16 lie the other way round, and OpenVINO makes one operation of a gated feed-forward.
    With `widened` weights of four bits are in memory as eight; with `stacked` their zeros are rows of them, and gate
    and up one product.
    """

    settings: Mapping[str, object]
    most: int = 0
    rows: int = 0
    least: int = 1
    half_attention: bool = False
    turned: bool = False
    widened: bool = False
    stacked: bool = False

    def runs(self, tokens: int, sequences: int) -> bool:
        """Whether it is for a step of so many."""
        if self.rows:
            return self.least <= tokens == sequences <= self.rows
        return tokens <= self.most or not self.most


def ways(precision: str, features: Sequence[str]) -> tuple[Way, ...]:
    """The forms that a precision runs in on a CPU with these features, for few tokens first.

    Weights of eight or four bits may meet activations that are rounded to eight, in groups. Where prompts are faster in
    bf16, or weights of four bits as eight, there are forms with one cache between them; each has the packed weights for
    itself.
    """
    fp32 = Way(settings={"KV_CACHE_PRECISION": "f32"})
    bf16: dict[str, object] = {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "bf16"}
    has_amx = "amx_bf16" in features
    if precision == "bf16":
        return (Way(settings=bf16, turned=has_amx),) if has_amx or "avx512_bf16" in features else (fp32,)
    if precision not in _FEW:
        return (fp32,)
    cache = {"KV_CACHE_PRECISION": _cache_precision(precision, features)}
    rounded = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": _GROUP, **cache}
    wide = precision == "int4-weights"
    one = Way(rows=1, settings=rounded, half_attention=has_amx, stacked=wide and not has_amx)
    if has_amx:
        return (one, Way(most=_FEW[precision], settings=rounded, half_attention=True), Way(settings=bf16))
    if not _MULTIPLIES_EIGHT_BITS & {*features}:
        return (one, Way(settings=rounded))
    several = Way(rows=_SIDE_BY_SIDE, least=_LEAST, settings=rounded, widened=wide)
    coarser = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": _MANY_GROUP, **cache}
    return (one, several, Way(settings=coarser, widened=wide))


def _cache_precision(precision: str, features: Sequence[str]) -> str:
    """Of keys and values behind packed weights, which every form shares.

    With AMX prompts run in bf16 whole. Without, attention in fp32 reads f16 as it is, and reads half as much:
    SmolLM2-135M in four bits on a Zen 5 in processor milliseconds of one thread, each the least of many, in turns
                     8 behind 64  8 behind 350  1 behind 64  1 behind 700
      cache in fp32         15.8          24.8          8.2          11.0
      cache in f16          14.3          21.7          7.0           8.8
    In eight bits it is as much faster (14.4 beside 15.3), but 8 of 628 next tokens were others where 6 may be.
    """
    if "amx_bf16" in features:
        return "bf16"
    return "f16" if precision == "int4-weights" and "avx512f" in features else "f32"


def compiled(graph: Graph, way: Way, settings: Mapping[str, object]) -> ov.CompiledModel:
    """One form of a decoder, ready to run."""
    try:
        model = read(graph.path, half=way.half_attention)
        if way.rows:
            fix(model, way.rows)
        if way.widened:
            widen(model)
        if way.stacked:
            stack(model)
        if way.settings.get("INFERENCE_PRECISION_HINT") == "bf16":
            join(model)
        # Where a thread is alone, OpenVINO 2026.4.1 divides by the half of one, and the process is gone.
        if way.turned and min(int(str(settings["INFERENCE_NUM_THREADS"])), usable_cores()) > 1:
            turn(model)
        return ov.Core().compile_model(model, DEVICE, {**settings, **way.settings})
    except RuntimeError as error:
        raise CompileError(f"openvino cannot compile {graph.path}: {said(error)}") from error


class _Request:
    """Runs one form; inputs stay where they are from call to call, which OpenVINO is faster with than with new ones."""

    def __init__(self, infer_request: ov.InferRequest) -> None:
        self.infer_request = infer_request
        self._inputs: dict[str, Array] = {}

    def run(self, feeds: Feeds) -> Logits:
        """What the next run overwrites."""
        for name, value in feeds.items():
            own = self._inputs.get(name)
            if own is not None and own.shape == value.shape:
                own[...] = value
                continue
            own = self._inputs[name] = np.array(value, order="C")
            self.infer_request.set_tensor(name, ov.Tensor(own, shared_memory=True))
        self.infer_request.infer()
        given: Logits = self.infer_request.get_output_tensor(0).data
        return given


class Paged:
    """Compiled forms of a decoder over one cache; nothing is copied, and no row is padded."""

    def __init__(self, engine: Engine, room: Room, settings: Mapping[str, object]) -> None:
        self.room = room
        self.vocabulary = _vocabulary(engine)
        forms = ways(engine.graph.precision, cpu_features())
        # Side by side: SmolLM2-135M in eight bits, three forms on two threads, 4.5 seconds instead of 8.0.
        with ThreadPoolExecutor(len(forms)) as compiling:
            models = list(compiling.map(lambda way: compiled(engine.graph, way, settings), forms))
        self._sights = Sights.of(engine.inputs)
        shapes = _caches(models)
        page_tokens = next(iter(shapes.values()))[1][2]
        self._pages = Pages(room, page_tokens, engine.plan.profile.axes["total"].max)
        self._requests = [
            (way, _Request(model.create_infer_request())) for way, model in zip(forms, models, strict=True)
        ]
        for name, (dtype, (_, *page)) in shapes.items():
            cache = ov.Tensor(dtype, ov.Shape([self._pages.count, *page]))
            for _, request in self._requests:
                request.infer_request.set_tensor(name, cache)

    def start(self, sequence: int, given: Feeds = NOTHING_GIVEN) -> None:
        """Begin a sequence; a decoder that sees is given what it sees, others nothing."""
        self._refuse_closed()
        if self._sights is None and given:
            raise InputError(f"a sequence is given {sorted(given)}, expected []")
        self._pages.start(sequence)
        if self._sights is None:
            return
        try:
            self._sights.start(sequence, given)
        except BaseException:
            self._pages.release(sequence)
            raise

    def step(self, work: Sequence[Work]) -> Logits:
        """Run everybody's tokens in one call."""
        self._refuse_closed()
        self._refuse_unknown(work)
        feeds = self._pages.pack(work)
        if self._sights is not None:
            feeds = {**feeds, **self._sights.flat(work, feeds["past_lens"].tolist())}
        try:
            logits = self._run(feeds)
        except BaseException:
            self._pages.lose([each.sequence for each in work])
            raise
        answering = sum(each.answers for each in work)
        return logits[:answering]

    def release(self, sequence: int) -> None:
        """Forget a sequence; its pages are the next one's."""
        self._pages.release(sequence)
        if self._sights is not None:
            self._sights.release(sequence)

    def close(self) -> None:
        """Release models and cache."""
        self._requests.clear()

    def _run(self, feeds: Feeds) -> Logits:
        tokens, sequences = len(feeds["input_ids"]), len(feeds["past_lens"])
        way, request = next(each for each in self._requests if each[0].runs(tokens, sequences))
        if way.rows:
            feeds = filled(feeds, way.rows, self._pages.nobodys)
        try:
            logits: Logits = request.run(feeds)[:, 0].copy()
        except RuntimeError as error:
            raise RunError(f"openvino failed: {said(error)}") from error
        return logits

    def _refuse_unknown(self, work: Sequence[Work]) -> None:
        """OpenVINO takes any number for a token, and answers."""
        for each in work:
            for token in (min(each.tokens), max(each.tokens)):
                if not 0 <= token < self.vocabulary:
                    raise RunError(
                        f"sequence {each.sequence}: token {token}; expected 0 to {self.vocabulary - 1}"
                    )

    def _refuse_closed(self) -> None:
        if not self._requests:
            raise RunError("session is closed")


def cost(engine: Engine) -> Cost:
    """What the pages of a session take: for each sequence one more, which may be begun and not full."""
    [form, *_] = ways(engine.graph.precision, cpu_features())
    size = 4 if form.settings["KV_CACHE_PRECISION"] == "f32" else 2
    past = [spec.shape for spec in engine.inputs if spec.name.startswith("past.")]
    token_bytes = sum(size * int(heads) * int(width) for _, heads, _, width in past)
    return Cost(token_bytes=token_bytes, sequence_bytes=PAGE_TOKENS * token_bytes)


def _caches(models: Sequence[ov.CompiledModel]) -> dict[str, tuple[ov.Type, tuple[int, ...]]]:
    """Type and shape of every cache, in which the forms of a decoder have to agree."""
    found = []
    for model in models:
        caches = [each for each in model.inputs if "_cache." in each.get_any_name()]
        found.append(
            {
                each.get_any_name(): (each.get_element_type(), _sizes(each.get_partial_shape()))
                for each in caches
            }
        )
    if any(other != found[0] for other in found):
        raise EngineError("openvino compiled the forms of a decoder for caches that differ")
    return found[0]


def _sizes(shape: ov.PartialShape) -> tuple[int, ...]:
    """The number of pages is open, here 0."""
    return tuple(0 if each.is_dynamic else each.get_length() for each in shape)


def _vocabulary(engine: Engine) -> int:
    size = next(spec.shape[-1] for spec in engine.outputs if spec.name == "logits")
    assert isinstance(size, int), "a vocabulary without a size"
    return size
