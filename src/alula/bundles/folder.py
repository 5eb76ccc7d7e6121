"""A bundle is a folder: opened only when whole, written aside and then renamed."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from alula.bundles import digest
from alula.bundles.manifest import FileRecord, Manifest, check_schema, check_to_json, parse_check
from alula.bundles.replace import alone, beside, put
from alula.core.check import Check, Reference, reference_named, verified
from alula.core.engine import Engine
from alula.core.errors import InputError, ManifestError
from alula.core.machine import machine
from alula.core.model import ModelSpec
from alula.core.parse import get, get_each
from alula.core.profile import GRID
from alula.core.refused import is_full, without_room
from alula.core.tensor import Feeds
from alula.core.words import MANIFEST

CHECKS = "checks.json"
TIMINGS = "timings.json"
REFERENCE = "reference.npz"
PROCESSOR = "processor"
"""The folder of the image processor's settings, beside the tokenizer's."""

# What tells our manifest from those of others, and what lies at the top of a bundle.
_FIELDS = frozenset({"schema", "model", "graphs", "engines"})
_NAMES = frozenset({MANIFEST, CHECKS, TIMINGS, REFERENCE, "graphs", "engines", "tokenizer", "processor"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """Sample feeds and the outputs a reference gave for them, kept so that a bundle can check itself anywhere."""

    reference: Reference
    feeds: tuple[Feeds, ...]
    outputs: tuple[Feeds, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """An opened bundle: every file was there, whole and unchanged."""

    root: Path
    manifest: Manifest
    checks: tuple[Check, ...]
    timings: tuple[Mapping[str, Any], ...]

    @property
    def model(self) -> ModelSpec:
        """What the bundle was built from."""
        return self.manifest.model

    @property
    def verified(self) -> bool:
        """Whether every check passed and one compared with more than our own graph."""
        return verified(self.checks)

    @property
    def passed(self) -> bool:
        """Whether every check passed, whatever it compared with."""
        return all(check.passed for check in self.checks)

    @property
    def tokenizer(self) -> Path:
        """The folder with the tokenizer's files."""
        return self.root / "tokenizer"

    @property
    def processor(self) -> Path:
        """The folder that says how rows become feeds: the tokenizer's, or the image processor's."""
        return self.tokenizer if self.model.reads_text else self.images

    @property
    def images(self) -> Path:
        """The folder with the image processor's settings, where images are read."""
        return self.root / PROCESSOR

    @property
    def answering(self) -> Engine:
        """The engine of the part that gives answers."""
        return self.manifest.answering

    def engine(self, part: str) -> Engine:
        """The engine of one part."""
        if part not in self.manifest.engines:
            raise InputError(f"{self.root}: no engine for part {part!r}; has {sorted(self.manifest.engines)}")
        return self.manifest.engines[part]

    @property
    def grid(self) -> tuple[int, int]:
        """The most patches down and across of an image that its engines take."""
        sides = [engine.plan.profile.axes for engine in self.manifest.engines.values()]
        found = next((axes for axes in sides if set(GRID) <= set(axes)), None)
        if found is None:
            raise InputError(f"{self.root}: no engine takes patches of an image")
        down, across = (found[axis].max for axis in GRID)
        return down, across

    @property
    def stored(self) -> Stored:
        """The sample feeds and reference outputs that the build kept."""
        return load_reference(self.root / REFERENCE)

    @classmethod
    def open(cls, root: Path) -> Bundle:
        """Read a bundle and prove it whole; the error names the file that is missing, cut short or changed."""
        manifest = _manifest(root)
        _prove_complete(root, manifest)
        # Hashing releases the interpreter, and a bundle is two large files and some small ones.
        with ThreadPoolExecutor(max_workers=4) as threads:
            list(threads.map(lambda record: _prove_whole(root, record), manifest.files))
        return cls._read(root, manifest)

    @classmethod
    def read(cls, root: Path) -> Bundle:
        """Read a bundle that this process has proved or written a moment ago."""
        return cls._read(root, _manifest(root))

    @classmethod
    def _read(cls, root: Path, manifest: Manifest) -> Bundle:
        return cls(
            root=root,
            manifest=manifest,
            checks=_located(root / CHECKS, lambda: _rows(root / CHECKS, parse_check)),
            timings=_located(root / TIMINGS, lambda: _rows(root / TIMINGS, dict)),
        )

    def with_checks(self, checks: Sequence[Check]) -> Bundle:
        """The bundle with these checks in place of its own, on disk too."""
        return self._with(CHECKS, document("verify", [check_to_json(check) for check in checks]))

    def with_timings(self, rows: Sequence[Mapping[str, Any]]) -> Bundle:
        """The bundle with these timings in place of its own, on disk too."""
        return self._with(TIMINGS, document("bench", rows))

    def _with(self, name: str, value: Mapping[str, Any]) -> Bundle:
        """Put a copy with another document in the bundle's place: two files change, and nobody sees one of them.

        What else was renewed meanwhile stays. Raises InputError where another bundle has been put there.
        """
        root = Path(os.path.realpath(self.root))
        with alone(root):
            lying = _manifest(root)
            # Of the same files and promise, from wherever, evidence holds.
            if replace(lying, source=self.manifest.source).identity != self.manifest.identity:
                raise InputError(f"{root}: another bundle was put there meanwhile; it is left as it is")
            scratch = beside(root, "changing")
            try:
                shutil.copytree(root, scratch, copy_function=link)
                write_json(scratch / name, value)
                files = tuple(
                    _record(scratch, scratch / name) if file.path == name else file for file in lying.files
                )
                write_json(scratch / MANIFEST, replace(lying, files=files).to_json())
                put(scratch, root)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return Bundle.read(self.root)


def link(source: str, target: str) -> str:
    """Share a file that nobody changes in place; the manifest, which has no digest of its own, is copied."""
    try:
        if Path(source).name != MANIFEST:
            os.link(source, target)
            return target
    except OSError:  # another file system, or one without hard links
        pass
    return shutil.copyfile(source, target)


@dataclass(kw_only=True, slots=True)
class Draft:
    """A bundle being written in `scratch`, a folder beside its destination; `to` may be changed until the end."""

    scratch: Path
    to: Path

    def graph_path(self, part: str, precision: str) -> Path:
        """Where the graph of a part at a precision belongs."""
        return self.scratch / "graphs" / f"{part}.{precision}.onnx"

    def engine_path(self, part: str, backend: str) -> Path:
        """Where the engine folder of a part belongs."""
        return self.scratch / "engines" / f"{part}.{backend}"

    def finish(
        self,
        manifest: Manifest,
        checks: Sequence[Check],
        timings: Sequence[Mapping[str, Any]],
        stored: Stored,
    ) -> None:
        """Write everything but the graphs, engines and tokenizer, which are there already; the manifest last."""
        write_json(self.scratch / CHECKS, document("verify", [check_to_json(check) for check in checks]))
        write_json(self.scratch / TIMINGS, document("bench", timings))
        save_reference(self.scratch / REFERENCE, stored)
        kept = sorted(path for path in self.scratch.rglob("*") if path.is_file())
        files = tuple(_record(self.scratch, path) for path in kept)
        write_json(self.scratch / MANIFEST, replace(manifest, files=files).to_json())


@contextmanager
def writing(to: Path) -> Iterator[Draft]:
    """A draft that becomes the bundle at `to` when the block ends well, and leaves no trace when it does not.

    A bundle that was there is replaced at that moment, all at once, and not before; a folder that is no bundle is
    never touched. A link is followed. Raises InputError while another process writes the same bundle, and an OSError
    that names the bundle and how much is free where a disk is full.
    """
    to = Path(os.path.realpath(to))
    refuse_foreign(to)
    with alone(to):
        scratch = beside(to, "building")
        try:
            (scratch / "graphs").mkdir(parents=True)
            (scratch / "engines").mkdir()
            draft = Draft(scratch=scratch, to=to)
            yield draft
            refuse_foreign(draft.to)
            put(scratch, draft.to)
        except OSError as error:
            if is_full(error):
                raise without_room(to) from error
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _manifest(root: Path) -> Manifest:
    if not (root / MANIFEST).is_file():
        raise InputError(f"{root}: {_not_a_bundle(root)}")
    raw = read_json(root / MANIFEST)
    parsed: Manifest = _located(root / MANIFEST, lambda: Manifest.parse(raw, root))
    return parsed


def _not_a_bundle(root: Path) -> str:
    if root.is_file():
        return "is a file, expected the folder of a bundle"
    if inner := sorted(str(path.parent) for path in root.glob(f"*/{MANIFEST}")):
        return f"is no bundle and has some in it; name one of them: {', '.join(inner)}"
    what = f"is not a bundle (no {MANIFEST})" if root.is_dir() else "does not exist"
    return f"{what}; make one with: alula build MODEL -o {root}"


def refuse_foreign(to: Path) -> None:
    """Refuse to overwrite what is not a bundle."""
    if to.is_dir() and any(to.iterdir()) and not _is_bundle(to):
        raise InputError(
            f"{to}: is a folder with other files in it; name a new folder or a bundle to replace"
        )
    if to.exists() and not to.is_dir():
        raise InputError(f"{to}: is a file; name a folder for the bundle")


def _is_bundle(folder: Path) -> bool:
    """Whether a folder is a bundle, a damaged one too; others than we have a manifest.json as well."""
    if not (folder / MANIFEST).is_file():
        return False
    try:
        return read_json(folder / MANIFEST).keys() >= _FIELDS
    except InputError:
        return {path.name for path in folder.iterdir()} <= _NAMES


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; the error names the file."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}; {_CURE}") from error
    if not isinstance(raw, dict):
        raise InputError(f"{path}: is {type(raw).__name__}, expected an object")
    return raw


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write aside, then rename, so that a reader sees the old document or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(finite(value), indent=1) + "\n", encoding="utf-8")
    aside.replace(path)


def finite(value: Any) -> Any:
    """The value with NaN and infinities as null, which is all that JSON has for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def document(command: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The envelope that every report shares: schema, command, machine, rows."""
    return {"schema": 1, "command": command, "machine": machine(), "rows": [dict(row) for row in rows]}


def save_reference(path: Path, stored: Stored) -> None:
    """One compressed file: `I/feed/NAME`, `I/output/NAME` and the reference's name."""
    arrays: dict[str, Any] = {"reference": np.array(stored.reference)}
    for index, (feeds, outputs) in enumerate(zip(stored.feeds, stored.outputs, strict=True)):
        arrays.update({f"{index}/feed/{name}": array for name, array in feeds.items()})
        arrays.update({f"{index}/output/{name}": array for name, array in outputs.items()})
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load_reference(path: Path) -> Stored:
    """What `save_reference` wrote."""
    feeds: dict[int, dict[str, Any]] = {}
    outputs: dict[int, dict[str, Any]] = {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            reference = reference_named(str(arrays["reference"]))
            for key in arrays.files:
                if key != "reference":
                    index, kind, tensor = key.split("/", 2)
                    side = feeds if kind == "feed" else outputs
                    side.setdefault(int(index), {})[tensor] = arrays[key]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    order = sorted(feeds)
    return Stored(
        reference=reference,
        feeds=tuple(feeds[i] for i in order),
        outputs=tuple(outputs[i] for i in order),
    )


def _rows(path: Path, parse: Any) -> tuple[Any, ...]:
    raw = read_json(path)
    check_schema(raw)
    get(raw, str, "command")
    return get_each(raw, "rows", parse)


def _record(root: Path, path: Path) -> FileRecord:
    return FileRecord(
        path=path.relative_to(root).as_posix(), bytes=path.stat().st_size, sha256=digest.of_file(path)
    )


def _prove_complete(root: Path, manifest: Manifest) -> None:
    """Every file that decides what the bundle does must be one whose digest is known."""
    known = {record.path for record in manifest.files}
    deciding = {CHECKS, TIMINGS, REFERENCE}
    for folder in ("graphs", "engines", "tokenizer", "processor"):
        deciding |= {
            path.relative_to(root).as_posix() for path in (root / folder).rglob("*") if path.is_file()
        }
    deciding |= {graph.path.relative_to(root).as_posix() for graph in manifest.graphs.values()}
    if unknown := sorted(deciding - known):
        raise InputError(f"{root / MANIFEST}: files: {unknown[0]!r} is not listed; {_CURE}")


_CURE = "copy the bundle again or build it again"


def _prove_whole(root: Path, record: FileRecord) -> None:
    path = root / record.path
    if Path(record.path).is_absolute() or ".." in Path(record.path).parts:
        raise InputError(f"{root / MANIFEST}: files: {record.path!r} leads out of the bundle")
    if not path.is_file():
        raise InputError(f"{path}: is missing from the bundle; {_CURE}")
    if (size := path.stat().st_size) != record.bytes:
        raise InputError(f"{path}: has {size} bytes, expected {record.bytes}: cut short or changed; {_CURE}")
    if digest.of_file(path) != record.sha256:
        raise InputError(f"{path}: was changed since the bundle was built (SHA-256 differs); {_CURE}")


def _located(path: Path, parse: Any) -> Any:
    try:
        return parse()
    except ManifestError as error:
        raise InputError(f"{path}: {error}") from error
