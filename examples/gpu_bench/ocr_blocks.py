"""A part in blocks of layers, each an engine: they are built beside each other in a part of the time.

A block takes the states that the one before it gives, and a decoder's keeps the caches of its own layers. Blocks are
cut from a graph that was rewritten whole, since what a pass may do depends on what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from alula.core.decoding import IMAGE
from alula.core.engine import Session
from alula.core.tensor import Array, Feeds, TensorSpec
from alula.engines.caches import Caches, Held, Past, caches_of

STATES, GIVEN = "states", "states_after"
"""What a block takes of the one before, and what it gives to the next."""
PATCHES = "patches"
"""The axis of a vision part's layers."""
_SUM = ".mlp.dense_4h_to_h/Add.1"
"""What leaves a layer of the vision part."""


def bounds(index: int, count: int, layers: int) -> tuple[int, int]:
    """The first layer of a block, and the one behind its last."""
    if not 0 <= index < count <= layers:
        raise ValueError(f"block {index} of {count} in {layers} layers")
    return layers * index // count, layers * (index + 1) // count


def cut(model: Any, index: int, count: int) -> Any:
    """One block of a decoder's graph, which is changed: what other blocks do is gone from it, their weights too."""
    graph = model.graph
    layers = sum(1 for value in graph.inputs if value.name.endswith(".key"))
    first, end = bounds(index, count, layers)
    caches = {f"{layer}.{kind}" for layer in range(first, end) for kind in ("key", "value")}
    kept = [value for value in graph.outputs if value.name.partition(".")[2] in caches]
    wide = next(each.shape[1] for each in graph.inputs if each.name == IMAGE)
    ends = (_after(first - 1) if first else "", _after(end - 1) if end < layers else "logits")
    return _between(model, ends, ("batch", "length", wide), kept)


def cut_vision(model: Any, index: int, count: int) -> Any:
    """One block of a vision part's graph, likewise: before the layers, some layers each, and what is behind them.

    Layers know nothing of a page's height and width: their one axis is the number of its patches.
    """
    names = {value.name for node in model.graph for value in node.outputs}
    layers = sum(1 for name in names if name.endswith(_SUM))
    # Where each block ends.
    ends = ["embeddings/Reshape"]
    ends += [f"layers.{bounds(at, count - 2, layers)[1] - 1}{_SUM}" for at in range(count - 2)]
    ends += ["embeddings"]
    wide = next(
        each for each in model.graph.initializers.values() if each.name == "layers.0.input_layernorm.weight"
    )
    return _between(model, (ends[index - 1] if index else "", ends[index]), (1, PATCHES, wide.shape[0]), [])


def _between(model: Any, ends: tuple[str, str], shape: Sequence[Any], kept: Sequence[Any]) -> Any:
    """What lies between two tensors by name, from the beginning where the first one is "", with more outputs."""
    import onnx_ir as ir  # noqa: PLC0415 - engines run without it
    from onnx_ir.passes.common import RemoveUnusedNodesPass  # noqa: PLC0415 - likewise

    def states(value: Any) -> Any:
        value.type, value.shape = ir.TensorType(value.dtype or ir.DataType.FLOAT), ir.Shape(shape)
        return value

    graph, (before, last) = model.graph, ends
    named = {value.name: value for node in graph for value in node.outputs}
    behind = named[last] in graph.outputs
    given = named[last] if behind else states(named[last])
    if before:
        taken = states(ir.Value(name=STATES, type=named[before].type))
        ir.convenience.replace_all_uses_with(named[before], taken)
        graph.inputs.append(taken)
    graph.outputs[:] = [given, *kept]
    RemoveUnusedNodesPass()(model)
    graph.inputs[:] = [value for value in graph.inputs if value.uses()]
    if not behind:
        given.name = GIVEN
    return model


def _after(layer: int) -> str:
    """What leaves a layer, by the name of its last sum."""
    return f"layers.{layer}/Add.1"


class Chain:
    """Blocks as one session, the first block first. Owns them."""

    def __init__(self, blocks: Sequence[Session]) -> None:
        self.blocks = tuple(blocks)
        named = {spec.name: spec for block in blocks for spec in block.inputs if spec.name != STATES}
        self.inputs = tuple(named.values())
        given = [spec for block in reversed(blocks) for spec in block.outputs if spec.name != GIVEN]
        self.outputs: tuple[TensorSpec, ...] = tuple(given)

    def run(self, feeds: Feeds) -> Feeds:
        """One block after another."""
        found: dict[str, Array] = {}
        for block in self.blocks:
            found.update(block.run(_fed(block, feeds, found.pop(GIVEN, _NOTHING))))
        return found

    def caches(self) -> Caches:
        """Each block's own, wherever it keeps them."""
        return ChainCaches(self.blocks)

    def close(self) -> None:
        """Close the blocks."""
        for block in self.blocks:
            block.close()


class ChainCaches:
    """What a chain keeps of its past: what each block keeps, in a row."""

    def __init__(self, blocks: Sequence[Session]) -> None:
        self._blocks = tuple(blocks)
        self._each = tuple(caches_of(block) for block in blocks)

    def empty(self) -> Past:
        """One row without places."""
        return tuple(each.empty() for each in self._each)

    def stacked(self, held: Sequence[Held], *, width: int, count: int) -> Past:
        """As each block does it."""
        return tuple(
            each.stacked([replace(one, past=one.past[at]) for one in held], width=width, count=count)
            for at, each in enumerate(self._each)
        )

    def run(self, feeds: Feeds, past: Past, cross: Feeds) -> tuple[Array, Past]:
        """The logits that the last block gives; the others give states."""
        given, kept = _NOTHING, []
        for block, each, own in zip(self._blocks, self._each, past, strict=True):
            given, after = each.run(_fed(block, feeds, given), own, cross)
            kept.append(after)
        return given, tuple(kept)


def _fed(block: Session, feeds: Feeds, states: Array) -> Feeds:
    """What a block takes of all that there is, its caches excepted where they are not among it.

    States come as fp32 from where caches are kept, whatever they were given in.
    """
    own = {spec.name: feeds[spec.name] for spec in block.inputs if spec.name in feeds}
    return own | {
        spec.name: states.astype(spec.dtype, copy=False) for spec in block.inputs if spec.name == STATES
    }


_NOTHING: Array = np.empty(0, np.float32)
