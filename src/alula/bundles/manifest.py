"""The parsed `manifest.json`, `checks.json` and `timings.json` of a bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from alula.core.check import Check, Reference, reference_named
from alula.core.engine import Engine, Plan
from alula.core.errors import InputError, ManifestError
from alula.core.graph import Graph
from alula.core.identity import identity
from alula.core.model import ModelSpec, Part
from alula.core.parse import get, get_each, get_ints, get_one, get_words
from alula.core.profile import PAST, Profile, Range, hull
from alula.core.tensor import Dim, TensorSpec

SCHEMA = 1

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """One file of a bundle, as it was when the bundle was written."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One precision that the build tried: how exact, how fast, how large, and why it was taken or left.

    `times` is how many times as fast as the first it is, `kept` its layers that compute in a higher precision; what
    was not measured is None. One that was not tried at all has no checks, and a reason.
    """

    precision: str
    passed: bool
    p50_ms: float | None
    shape: str
    taken: bool
    reason: str
    times: float | None = None
    bytes: int | None = None
    kept: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a bundle holds. Paths inside are relative to its root.

    `promise` says what the precision was proved by: `budget`, `metric`, `data` and `calibration`; empty without data.
    """

    model: ModelSpec
    source: str
    graphs: Mapping[str, Graph]
    engines: Mapping[str, Engine]
    rungs: tuple[Rung, ...]
    promise: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[FileRecord, ...]
    built_on: Mapping[str, Any]

    @property
    def answering(self) -> Engine:
        """The engine of the part that gives answers, whose axes are those of all parts."""
        for part in ("decoder", "encoder"):
            if part in self.engines:
                return self.engines[part]
        raise ManifestError("holds no engine", "engines")

    @property
    def profile(self) -> Profile:
        """The sizes of the answering engine, with those of axes that other parts have for themselves."""
        own = self.answering.plan.profile
        others = {axis: r for engine in self.engines.values() for axis, r in engine.plan.profile.axes.items()}
        return Profile({**others, **own.axes}, own.tuned)

    @property
    def identity(self) -> str:
        """A digest of all but the evidence, which `verify` and `bench` renew."""
        return identity(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The document, ready for `json.dump`."""
        return {
            "schema": SCHEMA,
            "model": _model_to_json(self.model),
            "source": self.source,
            "graphs": {key: _graph_to_json(graph) for key, graph in self.graphs.items()},
            "engines": {key: _engine_to_json(engine) for key, engine in self.engines.items()},
            "promise": dict(self.promise),
            "rungs": [rung_to_json(rung) for rung in self.rungs],
            "files": [asdict(record) for record in self.files],
            "built_on": dict(self.built_on),
        }

    @classmethod
    def parse(cls, raw: Mapping[str, Any], root: Path) -> Manifest:
        """Build from parsed JSON, paths resolved against `root`; errors name the field."""
        check_schema(raw)
        graphs = _get_map(raw, "graphs", lambda item: _parse_graph(item, root))
        return cls(
            model=get_one(raw, "model", _parse_model),
            source=get(raw, str, "source"),
            graphs=graphs,
            engines=_get_map(raw, "engines", lambda item: _parse_engine(item, root, graphs)),
            rungs=get_each(raw, "rungs", _parse_rung),
            promise=get(raw, dict, "promise") if "promise" in raw else {},
            files=get_each(raw, "files", _parse_file),
            built_on=get(raw, dict, "built_on"),
        )


def check_schema(raw: Mapping[str, Any]) -> None:
    """Refuse a document of another schema version."""
    schema = get(raw, int, "schema")
    if schema != SCHEMA:
        raise ManifestError(f"is version {schema}; this package reads {SCHEMA}", "schema")


def rung_to_json(rung: Rung) -> dict[str, Any]:
    """A rung with its checks, each with its verdict."""
    return {**asdict(rung), "checks": [check_to_json(check) for check in rung.checks]}


def check_to_json(check: Check) -> dict[str, Any]:
    """A check with its verdict, which is derived again when it is read."""
    made = {**asdict(check), "passed": check.passed}
    return {name: value for name, value in made.items() if name not in {"note", "rows"} or value}


def parse_check(raw: Mapping[str, Any]) -> Check:
    """Build from parsed JSON; a NaN is stored as null and read back as NaN."""
    return Check(
        output=get(raw, str, "output"),
        metric=get(raw, str, "metric"),
        samples=get(raw, int, "samples"),
        worst=_number(raw, "worst"),
        mean=_number(raw, "mean"),
        limit=get(raw, float, "limit"),
        higher_is_better=get(raw, bool, "higher_is_better"),
        reference=_reference(raw),
        note=get(raw, str, "note") if "note" in raw else "",
        rows=get(raw, str, "rows") if "rows" in raw else "",
    )


def _reference(raw: Mapping[str, Any]) -> Reference:
    try:
        return reference_named(get(raw, str, "reference"))
    except ManifestError:
        raise
    except InputError as error:
        raise ManifestError(str(error), "reference") from error


def _number(raw: Mapping[str, Any], key: str) -> float:
    return float("nan") if key in raw and raw[key] is None else get(raw, float, key)


def _get_map(raw: Mapping[str, Any], key: str, parse: Callable[[Mapping[str, Any]], T]) -> dict[str, T]:
    return get_one(raw, key, lambda items: {name: get_one(items, name, parse) for name in items})


def _model_to_json(model: ModelSpec) -> dict[str, Any]:
    return asdict(model)


def _parse_model(raw: Mapping[str, Any]) -> ModelSpec:
    return ModelSpec(
        name=get(raw, str, "name"),
        digest=get(raw, str, "digest"),
        revision=get(raw, str, "revision"),
        architecture=get(raw, str, "architecture"),
        family=get(raw, str, "family"),
        task=get(raw, str, "task"),
        parts=get_each(raw, "parts", _parse_part),
        max_length=get(raw, int, "max_length"),
        vocab_size=get(raw, int, "vocab_size"),
        pad_id=get(raw, int, "pad_id"),
        pooling=get(raw, str, "pooling"),
        normalize=get(raw, bool, "normalize"),
        labels=get_words(raw, "labels"),
        activation=get(raw, str, "activation"),
        comes_in=get(raw, str, "comes_in") if "comes_in" in raw else "fp32",
        end_ids=get_ints(raw, "end_ids") if "end_ids" in raw else (),
        start_id=get(raw, int, "start_id") if "start_id" in raw else -1,
        image_id=get(raw, int, "image_id") if "image_id" in raw else -1,
        compat=get(raw, str, "compat") if "compat" in raw else "",
        taught=get_words(raw, "taught") if "taught" in raw else (),
    )


def _parse_part(raw: Mapping[str, Any]) -> Part:
    return Part(
        name=get(raw, str, "name"),
        inputs=get_each(raw, "inputs", _parse_tensor),
        outputs=get_each(raw, "outputs", _parse_tensor),
    )


def _parse_tensor(raw: Mapping[str, Any]) -> TensorSpec:
    shape: list[Dim] = get(raw, list, "shape")
    for index, dim in enumerate(shape):
        if type(dim) not in (int, str):
            raise ManifestError(f"is {type(dim).__name__}, expected int or str", f"shape[{index}]")
    return TensorSpec(
        name=get(raw, str, "name"), dtype=get(raw, str, "dtype"), shape=tuple(shape), range=_parse_ends(raw)
    )


def _parse_ends(raw: Mapping[str, Any]) -> tuple[float, float] | None:
    if raw.get("range") is None:
        return None
    ends: list[Any] = get(raw, list, "range")
    if len(ends) != 2 or any(type(end) not in (int, float) for end in ends):
        raise ManifestError(f"is {ends}, expected two numbers", "range")
    return float(ends[0]), float(ends[1])


def _graph_to_json(graph: Graph) -> dict[str, Any]:
    return {**asdict(graph), "path": f"graphs/{graph.path.name}"}


def _parse_graph(raw: Mapping[str, Any], root: Path) -> Graph:
    return Graph(
        path=_inside(root, get(raw, str, "path")),
        digest=get(raw, str, "digest"),
        opset=get(raw, int, "opset"),
        nodes=get(raw, int, "nodes"),
        precision=get(raw, str, "precision"),
        inputs=get_each(raw, "inputs", _parse_tensor),
        outputs=get_each(raw, "outputs", _parse_tensor),
    )


def _engine_to_json(engine: Engine) -> dict[str, Any]:
    return {
        "backend": engine.backend,
        "target": engine.target,
        "path": f"engines/{engine.path.name}",
        "graph": engine.graph.path.stem,
        "profile": _profile_to_json(engine.plan.profile),
        **_settings_to_json(engine.plan),
    }


def _profile_to_json(profile: Profile) -> dict[str, list[int]]:
    return {axis: [r.min, r.opt, r.max] for axis, r in profile.axes.items()}


def _settings_to_json(plan: Plan) -> dict[str, Any]:
    """All of a plan but the profile that spans it, as far as something else than the usual was asked for."""
    given = {name: getattr(plan, name) for name in _SETTINGS}
    settings = {name: value for name, value in given.items() if value is not None and value is not False}
    made: dict[str, Any] = {"settings": settings} if settings else {}
    return {**made, "profiles": [_profile_to_json(each) for each in plan.tuned]} if plan.tuned else made


def _parse_engine(raw: Mapping[str, Any], root: Path, graphs: Mapping[str, Graph]) -> Engine:
    name = get(raw, str, "graph")
    if name not in graphs:
        raise ManifestError(f"is {name!r}, which is not among graphs {sorted(graphs)}", "graph")
    return Engine(
        backend=get(raw, str, "backend"),
        target=get(raw, str, "target"),
        path=_inside(root, get(raw, str, "path")),
        graph=graphs[name],
        plan=_parse_plan(raw),
    )


_SETTINGS: Mapping[str, type[Any]] = {
    "workspace_bytes": int,
    "level": int,
    "time_limit_s": float,
    "portable": bool,
    "strip_weights": bool,
}


def _parse_plan(raw: Mapping[str, Any]) -> Plan:
    """Bundles that were built before there was more than one profile have neither `profiles` nor `settings`."""
    profile = get_one(raw, "profile", _parse_profile)
    tuned = get_each(raw, "profiles", _parse_profile) if "profiles" in raw else ()
    if tuned and any(each.axes.keys() != profile.axes.keys() for each in tuned):
        raise ManifestError(f"have other axes than the profile, {', '.join(profile.axes)}", "profiles")
    if tuned and hull(tuned) != profile:
        raise ManifestError(f"span {hull(tuned)}, and the profile is {profile}", "profiles")
    settings = get_one(raw, "settings", _parse_settings) if "settings" in raw else {}
    return Plan(profile=profile, tuned=tuned, **settings)


def _parse_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {name: get(raw, kind, name) for name, kind in _SETTINGS.items() if name in raw}


def _parse_profile(raw: Mapping[str, Any]) -> Profile:
    axes = {}
    for axis in raw:
        sizes: list[Any] = get(raw, list, axis)
        if len(sizes) != 3 or any(type(size) is not int for size in sizes):
            raise ManifestError(f"is {sizes}, expected three whole numbers", axis)
        try:
            low, tuned, high = sizes
            axes[axis] = Range(low, tuned, high, 0 if axis == PAST else 1)
        except InputError as error:
            raise ManifestError(str(error), axis) from error
    return Profile(axes)


def _parse_rung(raw: Mapping[str, Any]) -> Rung:
    return Rung(
        precision=get(raw, str, "precision"),
        passed=get(raw, bool, "passed"),
        p50_ms=_optional(raw, float, "p50_ms"),
        shape=get(raw, str, "shape"),
        taken=get(raw, bool, "taken"),
        reason=get(raw, str, "reason"),
        times=_optional(raw, float, "times"),
        bytes=_optional(raw, int, "bytes"),
        kept=get_words(raw, "kept") if "kept" in raw else (),
        checks=get_each(raw, "checks", parse_check) if "checks" in raw else (),
    )


def _optional(raw: Mapping[str, Any], kind: type[T], key: str) -> T | None:
    return None if raw.get(key) is None else get(raw, kind, key)


def _parse_file(raw: Mapping[str, Any]) -> FileRecord:
    return FileRecord(
        path=get(raw, str, "path"), bytes=get(raw, int, "bytes"), sha256=get(raw, str, "sha256")
    )


def _inside(root: Path, relative: str) -> Path:
    """A path inside the bundle; a manifest must not lead out of it."""
    if Path(relative).is_absolute() or ".." in Path(relative).parts:
        raise ManifestError(f"{relative!r} leads out of the bundle", "path")
    return root / relative
