"""The seam between this package and the runtimes it drives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from alula.core.graph import Graph
from alula.core.model import Part
from alula.core.profile import Profile
from alula.core.progress import Note, quiet
from alula.core.tensor import Feeds, TensorSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How to compile: the whole input of a build besides the graph, whose types say the precision.

    `profile` spans all sizes that are taken; `tuned` are narrower ones inside it that compilers with several profiles
    tune for one by one, and sizes must then lie in one of them. `level` is TensorRT's, 0 to 5. `portable` engines run
    on newer devices and versions too, `strip_weights` leaves the weights to the graph that lies beside the engine.
    """

    profile: Profile
    tuned: tuple[Profile, ...] = ()
    workspace_bytes: int | None = None
    level: int | None = None
    time_limit_s: float | None = None
    portable: bool = False
    strip_weights: bool = False

    def __post_init__(self) -> None:
        # So that whoever makes batches for the engine by its profile knows of the gaps.
        object.__setattr__(self, "profile", replace(self.profile, tuned=self.tuned))

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Those that are tuned for, one at least."""
        return self.profile.parts

    def of(self, part: Part) -> Plan:
        """The plan of one part of a model: the sizes of its own axes."""
        return replace(self, profile=self.profile.of(part.axes), tuned=self.profile.of(part.axes).tuned)


LAYERS = "layers.json"
"""In an engine's folder: what its runtime says about the layers that run, as {"source", "version", "layers"}."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """A compiled model and everything needed to know whether it may be used here.

    `target` names device and runtime version it was compiled for (a session on another must compile again);
    `path` is its folder, `graph` the portable graph it can be compiled from again.
    """

    backend: str
    target: str
    path: Path
    graph: Graph
    plan: Plan

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What a session on this engine takes."""
        return self.graph.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What a session on this engine gives."""
        return self.graph.outputs


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """What a runtime's version, and the machine it is on, mean for a build.

    `opset` is the newest that it reads well, None for any; `lacks` are offered precisions that this version has not,
    with the reason, and so are options of the command line, by their names, that it cannot obey. `cannot_run` says why
    what is compiled here cannot be run here, `cannot_compile` why nothing can be compiled here; empty if it can.
    """

    opset: int | None = None
    lacks: Mapping[str, str] = field(default_factory=dict)
    cannot_run: str = ""
    cannot_compile: str = ""


class Session(Protocol):
    """An engine that is loaded and can run. Not thread-safe: one owner at a time."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What `run` takes."""
        ...

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What `run` gives."""
        ...

    def run(self, feeds: Feeds) -> Feeds:
        """Run once. The arrays returned are the caller's to keep."""
        ...

    def close(self) -> None:
        """Release the memory. Safe to call twice; `run` afterwards raises `RunError`."""
        ...


@runtime_checkable
class Warming(Session, Protocol):
    """A session that answers faster at shapes it was warmed up for."""

    def warm_up(self, shapes: Sequence[Mapping[str, int]]) -> None:
        """Make ready for calls of these axis sizes, and for those that padding brings to them."""
        ...


@runtime_checkable
class Picking(Session, Protocol):
    """A session that gives some of its outputs without what it costs to hand out the others."""

    def pick(self, feeds: Feeds, names: Collection[str]) -> Feeds:
        """As `run`, but these outputs alone."""
        ...


@runtime_checkable
class Recording(Session, Protocol):
    """A session that records the launches of a shape, and replays them when it comes again."""

    @property
    def replays(self) -> int:
        """How many calls were replayed so far."""
        ...


@runtime_checkable
class InLanes(Session, Protocol):
    """A session that runs several calls beside one another: `run` may be in `lanes` threads at once, and no more."""

    @property
    def lanes(self) -> int:
        """How many calls run at once."""
        ...


class Backend(Protocol):
    """Two verbs per runtime. A third needs an argument in review."""

    @property
    def name(self) -> str:
        """The name engines record and the command line takes."""
        ...

    @property
    def target(self) -> str:
        """Device and runtime version of this machine, as `Engine.target` records it."""
        ...

    def compile(self, graph: Graph, plan: Plan, to: Path, *, note: Note = quiet) -> Engine:
        """Write an engine for the device in this machine into the folder `to`, which does not exist yet."""
        ...

    def open(self, engine: Engine, *, threads: int = 0) -> Session:
        """Load an engine that was compiled for this target; 0 threads means one per usable core."""
        ...


@runtime_checkable
class OpensLanes(Backend, Protocol):
    """A backend whose sessions may run calls beside one another."""

    def open_lanes(self, engine: Engine, *, threads: int = 0, lanes: int = 0) -> InLanes:
        """As `open`, for many calls rather than for one; 0 lanes are as many as is best for all calls together."""
        ...
