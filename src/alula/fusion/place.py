"""Which layer does which node: by the runtime's names where it has them, by what is read and given where not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from alula.core.nodes import Node, Nodes
from alula.fusion.removed import DO_NOTHING, why_removed
from alula.fusion.values import Layer, Removed

_NUMBER = re.compile(r"_\d+$")
_PUT_BETWEEN = {"reformat", "cast", "view"}
_NO_WORK = {*_PUT_BETWEEN, "upkeep"}
_FREE = {"Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Identity"}

Ground = str | int
"""Where a value comes from: an input of the graph by its name, or the layer that gives it by its place."""

_NONE: Mapping[int, set[Ground]] = {}


def place(layers: Sequence[Layer], graph: Nodes) -> tuple[tuple[Layer, ...], tuple[Removed, ...]]:
    """The layers with their nodes, and the nodes that no layer does."""
    placing = Placing(layers, graph)
    placing.by_name()
    placing.by_value()
    placing.regions()
    placing.by_flow()
    placing.parts()
    placed = tuple(
        replace(layer, nodes=tuple(graph.nodes[node].name for node in sorted(placing.done[at])))
        for at, layer in enumerate(layers)
    )
    return placed, placing.removed()


class Placing:
    """The search: `done` holds the nodes of each layer, `where` the layers of each node, all by their places."""

    def __init__(self, layers: Sequence[Layer], graph: Nodes) -> None:
        self.layers, self.graph = layers, graph
        self.done: list[set[int]] = [set() for _ in layers]
        self.where: dict[int, set[int]] = {}
        self._producer: dict[str, int] = {}
        self._readers: dict[int, set[int]] = {}
        for at, node in enumerate(graph.nodes):
            self._producer.update({value: at for value in node.outputs if value})
        for at in range(len(graph.nodes)):
            for source in self._sources(at):
                self._readers.setdefault(source, set()).add(at)
        self._equals = _equals(graph)
        self._giver = {value.name: at for at, layer in enumerate(layers) for value in layer.outputs}
        self._takers: dict[int, set[int]] = {}
        for at in range(len(layers)):
            for giver in self._givers(at):
                self._takers.setdefault(giver, set()).add(at)

    def by_name(self) -> None:
        """Nodes whose name, or whose output's name, the runtime gives for a layer."""
        names: dict[str, list[int]] = {}
        for at, node in enumerate(self.graph.nodes):
            for alias in {node.name, *node.outputs, *(f"node_of_{value}" for value in node.outputs)} - {""}:
                names.setdefault(alias, []).append(at)
        for at, layer in enumerate(self.layers):
            for name in layer.named:
                # What a runtime does in several places it numbers: "mask/Mul_1".
                found = names.get(name) or names.get(_NUMBER.sub("", name), [])
                self._assign(found, [at])

    def by_value(self) -> None:
        """Nodes that give what a layer gives, or what a runtime only lays out anew or casts behind it."""
        for at, layer in enumerate(self.layers):
            for value in layer.outputs:
                node = self._producer.get(value.name)
                if node is None or node in self.where:
                    continue
                is_cast = self.graph.nodes[node].op == "Cast" and layer.role == "cast"
                if is_cast or layer.role not in _PUT_BETWEEN:
                    self._assign([node], [at])
                else:
                    self._assign([node], self._worked_before(at))

    def regions(self) -> None:
        """All nodes between what a region reads and what it gives, or between its first and its last one."""
        for at, layer in enumerate(self.layers):
            if not layer.opaque:
                continue
            read = {value.name for value in layer.inputs}
            ends = {self._producer[value.name] for value in layer.outputs if value.name in self._producer}
            inside: set[int] = set()
            waiting = [*ends, *self.done[at]]
            while waiting:
                node = waiting.pop()
                if node not in inside and self.where.get(node, {at}) == {at}:
                    inside.add(node)
                    waiting += self._sources(node, without=read)
            if not ends and self.done[at]:
                inside |= set(range(min(self.done[at]), max(self.done[at]) + 1)) - set(self.where)
            self._assign(inside, [at])

    def by_flow(self) -> None:
        """Nodes without a layer go to one that reads all that they read, behind them or before; then to what is left.

        Where one went, others read less: a residual's sum in a convolution makes what is behind read that alone.
        """
        self._backwards(self._doing)
        for at in range(len(self.graph.nodes)):
            if self._is_left(at) and len(grounds := self._grounds(at)) > 1:
                self._assign([at], self._before(grounds))
        self._backwards(self._doing)
        self._backwards(self._touching)

    def _backwards(self, choose: Callable[[int, set[Ground]], set[int]]) -> None:
        """Place nodes from the last to the first, so that the readers of each have been placed."""
        # What is placed is behind what is asked for: where inputs come from can be worked out once, forwards.
        known: dict[int, set[Ground]] = {}
        for at in range(len(self.graph.nodes)):
            if not self._home(at):
                known[at] = self._grounds(at, known)
        for at in reversed(known):
            if known[at] and self._is_left(at):
                self._assign([at], choose(at, known[at]))

    def _is_left(self, node: int) -> bool:
        return not self._home(node) and self.graph.nodes[node].op not in DO_NOTHING

    def parts(self) -> None:
        """Layers that work and have no node do a part of a node behind them that reads what they read."""
        for at in range(len(self.layers) - 1, -1, -1):
            if self.done[at] or self.layers[at].role in _NO_WORK:
                continue
            read = self._reads(at)
            for node in {node for other in self._behind(at) for node in self.done[other]}:
                if self._grounds(node) & read:
                    self._assign([node], [at])

    def removed(self) -> tuple[Removed, ...]:
        """The nodes without a layer, each with a reason."""
        gone = {at for at in range(len(self.graph.nodes)) if at not in self.where}
        return tuple(self._removed(at, gone) for at in sorted(gone))

    def _removed(self, at: int, gone: set[int]) -> Removed:
        node = self.graph.nodes[at]
        readers = self._readers.get(at, set())
        why = why_removed(
            node,
            [self.graph.nodes[reader] for reader in readers],
            constant=not self._grounds(at),
            same_as=self._twin(at),
            unread=bool(readers) and readers <= gone,
        )
        return Removed(node=node.name, op=node.op, why=why)

    def _assign(self, nodes: Iterable[int], layers: Iterable[int]) -> None:
        for layer in layers:
            for node in nodes:
                if self.graph.nodes[node].op in DO_NOTHING and self.layers[layer].role != "view":
                    # It lent its name to the layer that does what is before it.
                    self._assign(self._sources(node), [layer])
                    continue
                self.done[layer].add(node)
                self.where.setdefault(node, set()).add(layer)

    def _sources(self, node: int, without: Iterable[str] = ()) -> Iterator[int]:
        """The nodes whose outputs a node reads."""
        for value in self.graph.nodes[node].inputs:
            if value in self._producer and value not in without:
                yield self._producer[value]

    def _home(self, node: int) -> set[int]:
        """The layers of a node, or of one that computes the same."""
        if node in self.where:
            return self.where[node]
        return {layer for equal in self._equals[node] for layer in self.where.get(equal, ())}

    def _twin(self, node: int) -> Node | None:
        equal = next((other for other in self._equals[node] if other in self.where), None)
        return None if equal is None else self.graph.nodes[equal]

    def _grounds(self, node: int, known: Mapping[int, set[Ground]] = _NONE) -> set[Ground]:
        """Where the inputs of a node come from; nothing for one that is constant. `known` are answers of others."""
        found: set[Ground] = set()
        waiting, seen = [node], {node}
        while waiting:
            for value in self.graph.nodes[waiting.pop()].inputs:
                source = self._producer.get(value)
                if source is None:
                    if value and value not in self.graph.constants:
                        found.add(value)
                elif home := self._home(source):
                    found |= home
                elif source in known:
                    found |= known[source]
                elif source not in seen:
                    seen.add(source)
                    waiting.append(source)
        return found

    def _doing(self, node: int, grounds: set[Ground]) -> set[int]:
        """The layers behind a node that read all it reads, or nameless ones right before those that read some of it.

        A layer that does what is before and behind does what is between; one whose inputs nobody tells is believed.
        """
        found: set[int] = set()
        for layer in self._behind_node(node):
            nameless = {other for other in self._nameless_before(layer) if self._reads(other) & grounds}
            if nameless:
                found |= nameless
            elif layer in grounds or grounds <= self._reads(layer) or not self.layers[layer].inputs:
                found.add(layer)
        return found

    def _before(self, grounds: set[Ground]) -> set[int]:
        """The layers among these that read the rest of them, as a convolution that adds another branch to its own."""
        return {at for at in grounds if isinstance(at, int) and grounds - {at} <= self._reads(at)}

    def _touching(self, node: int, grounds: set[Ground]) -> set[int]:
        """The layers behind a node that read a part of what it reads."""
        return {layer for layer in self._behind_node(node) if self._reads(layer) & grounds}

    def _behind_node(self, node: int) -> set[int]:
        """The layers of those that read what a node gives; of work, not those that only put data otherwise."""
        readers = {layer for reader in self._readers.get(node, ()) for layer in self._home(reader)}
        return readers if self.graph.nodes[node].op in _FREE else self._working(readers)

    def _worked_before(self, layer: int) -> set[int]:
        """The layers whose work this one only puts otherwise."""
        found: set[int] = set()
        waiting, seen = [layer], {layer}
        while waiting:
            for giver in set(self._givers(waiting.pop())) - seen:
                seen.add(giver)
                if self.layers[giver].role in _PUT_BETWEEN:
                    waiting.append(giver)
                else:
                    found.add(giver)
        return found

    def _working(self, layers: set[int]) -> set[int]:
        """These layers, and for those that only put data otherwise the ones behind them: no work is done in a view."""
        found: set[int] = set()
        waiting, seen = list(layers), set(layers)
        while waiting:
            layer = waiting.pop()
            if self.layers[layer].role not in _PUT_BETWEEN:
                found.add(layer)
                continue
            behind = self._takers.get(layer, set()) - seen
            seen |= behind
            waiting += behind
        return found

    def _reads(self, layer: int) -> set[Ground]:
        """Where the inputs of a layer come from, through layers without nodes and those that only change a shape."""
        found: set[Ground] = set()
        waiting, seen = [layer], {layer}
        while waiting:
            for value in self.layers[waiting.pop()].inputs:
                giver = self._giver.get(value.name)
                if giver is None:
                    found.add(value.name)
                    continue
                if self.done[giver]:
                    found.add(giver)
                if giver not in seen and (not self.done[giver] or self.layers[giver].role == "view"):
                    seen.add(giver)
                    waiting.append(giver)
        return found

    def _givers(self, layer: int) -> Iterator[int]:
        for value in self.layers[layer].inputs:
            if value.name in self._giver:
                yield self._giver[value.name]

    def _nameless_before(self, layer: int) -> set[int]:
        """Layers that work and have no nodes, upstream of this one with none that has nodes between."""
        found: set[int] = set()
        waiting = [layer]
        while waiting:
            for giver in self._givers(waiting.pop()):
                if giver not in found and not self.done[giver]:
                    found.add(giver)
                    waiting.append(giver)
        return {other for other in found if self.layers[other].role not in _PUT_BETWEEN}

    def _behind(self, layer: int) -> set[int]:
        """The layers with nodes that read what this one gives, through layers without."""
        found, seen = set(), {layer}
        waiting = [layer]
        while waiting:
            for taker in self._takers.get(waiting.pop(), set()) - seen:
                seen.add(taker)
                if self.done[taker]:
                    found.add(taker)
                else:
                    waiting.append(taker)
        return found


def _equals(graph: Nodes) -> list[tuple[int, ...]]:
    """For each node the others that compute the same from the same."""
    first: dict[object, int] = {}
    stands_for: list[int] = []
    known: dict[str, tuple[int, int]] = {}
    for at, node in enumerate(graph.nodes):
        inputs = tuple(known.get(value, value) for value in node.inputs)
        stands_for.append(first.setdefault((node.op, node.domain, inputs, node.attributes), at))
        known.update({value: (stands_for[at], port) for port, value in enumerate(node.outputs) if value})
    groups: dict[int, list[int]] = {}
    for at, one in enumerate(stands_for):
        groups.setdefault(one, []).append(at)
    return [tuple(other for other in groups[one] if other != at) for at, one in enumerate(stands_for)]
