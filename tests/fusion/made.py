"""Samples of what runtimes say, and graphs and layers made of a few words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from alula.core.nodes import Node, Nodes
from alula.fusion import Layer, Value

SAMPLES = Path(__file__).parent / "samples"


def sample(name: str) -> dict[str, Any]:
    """A document by its name; TensorRT writes control characters as they are."""
    found: dict[str, Any] = json.loads((SAMPLES / f"{name}.json").read_text("utf-8"), strict=False)
    return found


def graph(*lines: str, inputs: str = "x", constants: str = "w b") -> Nodes:
    """A graph from lines such as "add = Add(x, y)", each naming a value; "name: add = ..." names the node otherwise."""
    nodes = []
    for line in lines:
        left, _, call = line.partition(" = ")
        name, _, value = left.rpartition(": ")
        op, _, values = call.removesuffix(")").partition("(")
        read = tuple(each for each in values.split(", ") if each)
        nodes.append(Node(name=name or value, op=op, inputs=read, outputs=(value,)))
    return Nodes(
        nodes=tuple(nodes),
        inputs=tuple(inputs.split()),
        outputs=nodes[-1].outputs,
        constants=frozenset(constants.split()),
    )


def layer(name: str, reads: str = "", gives: str = "", **more: Any) -> Layer:
    """A layer with what it reads and gives, by name."""
    return Layer(
        name=name,
        inputs=tuple(Value(name=each) for each in reads.split()),
        outputs=tuple(Value(name=each) for each in gives.split()),
        **more,
    )
