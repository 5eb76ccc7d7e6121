"""Which files of tables a path stands for: one file, a saved data set, or one split in several files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from alula.core.errors import InputError
from alula.data.rows import refuse_beyond, shown

ENDINGS = (".parquet", ".arrow")

# The hub's files: SPLIT-AT-of-ALL, and in older ones a fingerprint behind it.
_PART = re.compile(r"(?P<split>.+)-(?P<at>\d{5})-of-(?P<all>\d{5})(-[0-9a-f]{16})?\.parquet")
_SPLITS = frozenset({"train", "test", "validation", "valid", "val", "dev"})


def files_of(path: Path) -> tuple[Path, ...]:
    """The files of tables that `path` stands for, in their order; none where it is something else."""
    if path.is_dir():
        found = _saved(path) or _only_split(path)
    elif path.exists():
        found = (path,) if path.is_file() and path.suffix.lower() in ENDINGS else ()
    else:
        found = _whole(path, _splits(path.parent).get(path.name, ())) if path.parent.is_dir() else ()
    if found:
        refuse_beyond(path, sum(file.stat().st_size for file in found))
    return found


def _saved(folder: Path) -> tuple[Path, ...]:
    """The files of a folder that `datasets` saved."""
    if (folder / "dataset_dict.json").is_file():
        splits = _field(folder / "dataset_dict.json", "splits")
        if not isinstance(splits, list) or not all(isinstance(split, str) for split in splits):
            raise InputError(f"{shown(folder)}/dataset_dict.json names no splits")
        raise _several(folder, [folder / split for split in splits])
    if not (folder / "state.json").is_file():
        if any(folder.glob("*.arrow")):
            raise InputError(f"{shown(folder)} holds .arrow files without state.json; name one of the files")
        return ()
    if _field(folder / "state.json", "_indices_data_files"):
        raise InputError(
            f"{shown(folder)} was saved with an order of its own; save its flatten_indices() again"
        )
    entries = _field(folder / "state.json", "_data_files")
    listed = entries if isinstance(entries, list) else []
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in listed]
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise InputError(f"{shown(folder)}/state.json names no data files in its folder")
    return _present(folder / str(name) for name in names)


def _only_split(folder: Path) -> tuple[Path, ...]:
    splits = _splits(folder)
    if len(splits) > 1:
        raise _several(folder, [_path_of(folder, split, files) for split, files in splits.items()])
    if splits:
        return next(_whole(folder, files) for files in splits.values())
    below = {inner: _splits(inner) for inner in sorted(folder.iterdir()) if inner.is_dir()}
    paths = [_path_of(inner, split, files) for inner in below for split, files in below[inner].items()]
    if paths:
        raise _several(folder, paths)
    return ()


def _splits(folder: Path) -> dict[str, tuple[Path, ...]]:
    """The parquet files of a folder by their split; files that are of none go by the empty word."""
    splits: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.parquet")):
        part = _PART.fullmatch(path.name)
        if not path.name.startswith("."):
            split = part["split"] if part else path.stem if path.stem in _SPLITS else ""
            splits.setdefault(split, []).append(path)
    return {split: tuple(files) for split, files in splits.items()}


def _path_of(folder: Path, split: str, files: tuple[Path, ...]) -> Path:
    """What names a split alone: its one file, its folder, or the beginning of its files' names."""
    if len(files) == 1:
        return files[0]
    return folder / split if split and _PART.fullmatch(files[0].name) else folder


def _whole(path: Path, files: tuple[Path, ...]) -> tuple[Path, ...]:
    """The files, if no part is missing."""
    parts = [part for part in (_PART.fullmatch(file.name) for file in files) if part]
    expected = {int(part["all"]) for part in parts}
    if expected and (len(expected) > 1 or [int(part["at"]) for part in parts] != list(range(max(expected)))):
        names = ", ".join(shown(file.name) for file in files[:4])
        raise InputError(
            f"{shown(path)} is not whole: of {max(expected)} parts there are {len(parts)}: {names}"
        )
    return files


def _present(files: Iterable[Path]) -> tuple[Path, ...]:
    found = tuple(files)
    for file in found:
        if not file.is_file():
            raise InputError(f"{shown(file)} does not exist; {shown(file.parent)}/state.json names it")
    return found


def _field(path: Path, name: str) -> Any:
    """One field of a small JSON file that `datasets` wrote."""
    refuse_beyond(path, path.stat().st_size)
    try:
        return json.loads(path.read_bytes()).get(name)
    except (ValueError, RecursionError, AttributeError) as error:
        raise InputError(f"{shown(path)} is not what datasets writes: {error}") from error


def _several(folder: Path, paths: list[Path]) -> InputError:
    named = ", ".join(shown(path) for path in paths[:8])
    return InputError(f"{shown(folder)} is not itself a set of rows; name one of those in it: {named}")
