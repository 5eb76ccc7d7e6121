"""Whatever keeps a cache, opened, beside the plain graph that it has to agree with."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import tiny_writers
from fake_gpu import FakeCudart
from gpus import pretended
from numpy.typing import NDArray

from alula.core.decoding import NOTHING_GIVEN, Decoding, Room
from alula.core.engine import Engine, Plan, Session
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds
from alula.engines import backend, open_decoding
from alula.engines.dense import Dense, Loaded
from alula.engines.seeing import Seeing, looked
from alula.engines.sights import Sights
from alula.families import describe, open_checkpoint, write
from alula.graphs import passes_for, rewrite, save

Floats = NDArray[np.float32]

SIZES = {
    **tiny_writers.AXES,
    "source": tiny_writers.SOURCE,
    **dict.fromkeys(("down", "across"), Range(2, 4, 8)),
    "image_tokens": Range(1, 4, 64),
}
IN_PLACE_SIZES = {**SIZES, **tiny_writers.IN_PLACE}

KINDS = (
    "function",
    "function with an encoder",
    "function in place",
    "function in place with an encoder",
    "llama on onnxruntime",
    "llama on openvino",
    "llama on openvino",
    "t5 on onnxruntime",
    "t5 on openvino",
    "llama on a pretended GPU",
    "t5 on a pretended GPU",
    "hunyuan on onnxruntime",
    "hunyuan on openvino",
    "hunyuan on a pretended GPU",
)


@dataclass(frozen=True, kw_only=True)
class Writer:
    """A model that writes: `open` gives a session with so much room, `parts` are its graphs without a cache."""

    open: Callable[[Room], Decoding]
    parts: Mapping[str, Session]
    vocabulary: int

    @property
    def reads(self) -> bool:
        return "encoder" in self.parts

    @property
    def sees(self) -> bool:
        return "vision" in self.parts

    def given(self, seed: int) -> Feeds:
        """A source of its own for every seed where there is an encoder, and an image where one is seen."""
        if self.sees:
            return _image(seed)
        if not self.reads:
            return NOTHING_GIVEN
        random = np.random.default_rng(seed)
        return {"input_ids": random.integers(2, self.vocabulary - 1, (1, random.integers(1, 24)))}

    def tokens(self, count: int, seed: int) -> tuple[int, ...]:
        random = np.random.default_rng(1000 + seed)
        return tuple(random.integers(2, self.vocabulary - 1, count).tolist())

    def whole(self, tokens: tuple[int, ...], given: Feeds = NOTHING_GIVEN) -> Floats:
        """Logits of every token of a sequence alone, in one call without a past."""
        ids = np.array([tokens])
        decoder = self.parts["decoder"]
        feeds: dict[str, Any] = {
            "input_ids": ids,
            "position_ids": np.arange(len(tokens))[None],
            "attention_mask": np.ones_like(ids),
            "answers": np.arange(len(tokens)),
        }
        if self.sees:
            sights = Sights.of(decoder.inputs)
            assert sights is not None
            sights.start(0, looked(self.parts["vision"], given))
            feeds |= sights.squared([0], [0], len(tokens), 1)
        if self.reads:
            mask = np.ones_like(given["input_ids"])
            states = self.parts["encoder"].run({**given, "attention_mask": mask})
            feeds |= {"encoder_attention_mask": mask, **self.parts["cross"].run(states)}
        for spec in decoder.inputs:
            if spec.name.startswith("past."):
                feeds[spec.name] = np.zeros(spec.sized({"batch": 1, "past": 0}), spec.dtype)
        logits: Floats = np.asarray(decoder.run(feeds)["logits"][0], np.float32)
        return logits


def writer(kind: str, folder: Path) -> Writer:
    if kind.startswith("function"):
        reads, grows = kind.endswith("encoder"), "in place" not in kind
        return Writer(
            open=lambda room: Dense(tiny_writers.parts(reads=reads, grows=grows), room),
            parts={name: part.session for name, part in tiny_writers.parts(reads=reads).items()},
            vocabulary=tiny_writers.VOCABULARY,
        )
    family, _, name = kind.partition(" on ")
    graphs, vocabulary = {"llama": _llama, "t5": _t5, "hunyuan": _hunyuan}[family](folder / "checkpoint")
    if name == "a pretended GPU":
        engines = written(graphs, "tensorrt", folder, IN_PLACE_SIZES, opset=17)
        open_with: Callable[[Room], Decoding] = partial(_on_a_pretended_gpu, engines, graphs)
    else:
        engines = compiled(graphs, name, folder)
        open_with = partial(open_decoding, engines, threads=1)
    plain = compiled(graphs, "onnxruntime", folder / "plain")

    return Writer(
        open=open_with,
        parts={each: backend("onnxruntime").open(engine, threads=1) for each, engine in plain.items()},
        vocabulary=vocabulary,
    )


def compiled(graphs: Mapping[str, ir.Model], name: str, folder: Path) -> dict[str, Engine]:
    """An engine of every part, for the sizes of `tiny_writers`."""
    return {
        part: backend(name).compile(each.graph, each.plan, each.path)
        for part, each in written(graphs, name, folder, SIZES).items()
    }


def written(
    graphs: Mapping[str, ir.Model],
    name: str,
    folder: Path,
    sizes: Mapping[str, Range],
    opset: int | None = None,
) -> dict[str, Engine]:
    """What there is of an engine of every part before it is compiled."""
    folder.mkdir(parents=True, exist_ok=True)
    engines = {}
    for part, model in graphs.items():
        changed = rewrite(model.clone(), passes_for(name, "fp32", opset))
        graph = save(changed, folder / f"{part}.onnx", "fp32")
        axes = {dim for spec in graph.inputs for dim in spec.shape if isinstance(dim, str)}
        plan = Plan(profile=Profile({axis: sizes[axis] for axis in axes}))
        path = folder / f"{part}.engine"
        engines[part] = Engine(backend=name, target="", path=path, graph=graph, plan=plan)
    return engines


def _on_a_pretended_gpu(
    engines: Mapping[str, Engine], graphs: Mapping[str, ir.Model], room: Room
) -> Decoding:
    """What sees is on the CPU: what is pretended knows no size that does not follow from another by its name."""
    cudart = FakeCudart()
    parts = {
        name: Loaded(
            session=pretended(engine.graph, engine.plan, engine.path, cudart), profile=engine.plan.profile
        )
        for name, engine in engines.items()
        if name != "vision"
    }
    dense = Dense(parts, room)
    if "vision" not in engines:
        return dense
    with tempfile.TemporaryDirectory() as folder:
        seeing = compiled({"vision": graphs["vision"]}, "onnxruntime", Path(folder))["vision"]
        return Seeing(backend("onnxruntime").open(seeing, threads=1), dense)


def _llama(folder: Path) -> tuple[dict[str, ir.Model], int]:
    pytest.importorskip("transformers")
    import tiny_decoders  # noqa: PLC0415 - loads torch

    made = tiny_decoders.opened(folder, tiny_decoders.checkpoint(folder, "llama"))
    return {"decoder": made.graph}, tiny_decoders.SIZES["vocab_size"]


def _t5(folder: Path) -> tuple[dict[str, ir.Model], int]:
    pytest.importorskip("transformers")
    import tiny_t5  # noqa: PLC0415 - loads torch

    tiny_t5.checkpoint(folder)
    return {name: tiny_t5.part(folder, name) for name in tiny_t5.PARTS}, tiny_t5.VOCAB


def _hunyuan(folder: Path) -> tuple[dict[str, ir.Model], int]:
    pytest.importorskip("transformers.models.hunyuan_vl")
    import tiny_hunyuan  # noqa: PLC0415 - loads torch

    tiny_hunyuan.checkpoint(folder)
    found = open_checkpoint(str(folder))
    spec = describe(found)
    return {part.name: write(found, spec, part.name) for part in spec.parts}, tiny_hunyuan.VOCAB


def _image(seed: int) -> Feeds:
    """A grid of four or six tokens behind the first of a prompt, and one of two axes on which they are elsewhere."""
    random = np.random.default_rng(seed)
    rows = int(random.integers(1, 3))
    count = rows * 2 + 2
    places = np.tile(np.arange(1 + count), (4, 1))
    places[1:, 2:count] = np.stack(
        [np.arange(rows * 2) % 2, np.arange(rows * 2) // 2, np.zeros(rows * 2, int)]
    )
    patches = random.standard_normal((2 * rows, 2, 48)).astype(np.float32)
    return {"patches.0": patches, "image_at": np.arange(1, 1 + count), "places": places}
