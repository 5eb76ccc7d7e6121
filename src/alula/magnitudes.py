"""What makes a model fp16 whose values may leave its range; of one that writes text by its scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from alula import families, graphs
from alula.core.engine import Session
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.core.tensor import Feeds
from alula.running import running
from alula.scripts import OwnGraphs, read_whole, seen_of, side_by_side, sources_of, stacked
from alula.verify import Script


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """What makes parts of a model fp16: their streams multiplied by these, and the names of nodes that stay fp32."""

    shrink: Mapping[str, float] = field(default_factory=dict)
    beyond: frozenset[str] = frozenset()


AS_IT_IS = Fitted()


def fitted_to_fp16(
    checkpoint: families.Checkpoint,
    spec: ModelSpec,
    profile: Profile,
    scripts: Sequence[Script],
    policy: graphs.Policy,
) -> Fitted:
    """By the largest magnitudes of all parts over these scripts; measured again where something was shrunk."""
    models = {part.name: families.write(checkpoint, spec, part.name) for part in spec.parts}
    largest = _largest(models, spec, profile, scripts, policy)
    shrink = {name: graphs.shrinkage(model, largest[name]) for name, model in models.items()}
    if set(shrink.values()) != {1.0}:
        models = {name: graphs.shrink(model, shrink[name]) for name, model in models.items()}
        largest = _largest(models, spec, profile, scripts, policy)
    found = [graphs.beyond_fp16(model, largest[name], policy) for name, model in models.items()]
    return Fitted(shrink=shrink, beyond=frozenset().union(*found))


def _largest(
    models: Mapping[str, graphs.Model],
    spec: ModelSpec,
    profile: Profile,
    scripts: Sequence[Script],
    policy: graphs.Policy,
) -> dict[str, Mapping[str, float]]:
    """The magnitudes of each part by the names of `graphs.observe_magnitudes`."""
    with ExitStack() as opened:
        watched: dict[str, Watched] = {}
        for part in spec.parts:
            model, names = graphs.observe_magnitudes(models[part.name], policy)
            session = opened.enter_context(running(model, read_whole(profile).of(part.axes), in_order=True))
            watched[part.name] = Watched(session, names)
        own = OwnGraphs(spec, watched)
        for group in side_by_side(scripts):
            own.read(stacked([script.tokens for script in group]), sources_of(group), 1, seen_of(group))
        return {name: each.largest for name, each in watched.items()}


class Watched:
    """A part whose outputs include magnitudes, the largest of which are kept."""

    def __init__(self, session: Session, names: Sequence[str]) -> None:
        self.inputs, self.outputs = session.inputs, session.outputs
        self.largest = dict.fromkeys(names, 0.0)
        self._session = session

    def run(self, feeds: Feeds) -> Feeds:
        """Run once."""
        given = self._session.run(feeds)
        for name, before in self.largest.items():
            self.largest[name] = max(before, float(given[name]))
        return {name: array for name, array in given.items() if name not in self.largest}

    def close(self) -> None:
        """Release the graph."""
        self._session.close()
