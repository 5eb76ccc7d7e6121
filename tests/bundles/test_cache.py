from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from alula.bundles import Cache
from alula.bundles.folder import Bundle
from alula.bundles.replace import alone

spec = importlib.util.spec_from_file_location("bundle_maker", Path(__file__).with_name("test_folder.py"))
assert spec is not None
assert spec.loader is not None
maker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(maker)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    made: Bundle = maker.make(tmp_path / "built")
    return made


def test_a_kept_bundle_is_fetched_by_its_key_and_no_other(bundle: Bundle, tmp_path: Path) -> None:
    cache = Cache(root=tmp_path / "cache")
    key = cache.key({"checkpoint": "a", "precision": "fp32"})
    cache.keep(key, bundle.root)
    fetched = cache.fetch(key, tmp_path / "fetched")
    assert fetched is not None
    assert fetched.model == bundle.model
    assert fetched.root == tmp_path / "fetched"
    assert cache.fetch(cache.key({"checkpoint": "a", "precision": "bf16"}), tmp_path / "other") is None
    assert not (tmp_path / "other").exists()


def test_an_entry_is_looked_at_where_it_lies(bundle: Bundle, tmp_path: Path) -> None:
    cache = Cache(root=tmp_path / "cache")
    assert cache.look("k") is None
    cache.keep("k", bundle.root)
    looked = cache.look("k")
    assert looked is not None
    assert looked.verified
    (looked.root / "checks.json").write_text("{")
    assert cache.look("k") is None


def test_a_damaged_entry_is_dropped_and_built_again(bundle: Bundle, tmp_path: Path) -> None:
    cache = Cache(root=tmp_path / "cache")
    cache.keep("k", bundle.root)
    (tmp_path / "cache" / "bundles" / "k" / "checks.json").write_text("{}")
    assert cache.fetch("k", tmp_path / "fetched") is None
    assert not (tmp_path / "cache" / "bundles" / "k").exists()
    assert not (tmp_path / "fetched").exists()


def test_a_file_changed_in_place_is_noticed_and_never_fetched(bundle: Bundle, tmp_path: Path) -> None:
    cache = Cache(root=tmp_path / "cache")
    cache.keep("k", bundle.root)
    first = cache.fetch("k", tmp_path / "one")
    assert first is not None
    (first.root / "graphs" / "encoder.fp32.onnx").write_text("changed")
    assert cache.fetch("k", tmp_path / "two") is None
    assert not (tmp_path / "two").exists()


def test_the_cache_shares_its_files_and_new_checks_do_not_reach_it(bundle: Bundle, tmp_path: Path) -> None:
    cache = Cache(root=tmp_path / "cache")
    cache.keep("k", bundle.root)
    graph = tmp_path / "cache" / "bundles" / "k" / "graphs" / "encoder.fp32.onnx"
    assert graph.samefile(bundle.root / "graphs" / "encoder.fp32.onnx")
    bundle.with_checks([]).with_timings([])
    fetched = cache.fetch("k", tmp_path / "fetched")
    assert fetched is not None
    assert fetched.checks == (maker.PASSED,)


def test_an_edited_manifest_does_not_reach_the_cache(bundle: Bundle, tmp_path: Path) -> None:
    cache = Cache(root=tmp_path / "cache")
    cache.keep("k", bundle.root)
    manifest = bundle.root / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"max_length": 16', '"max_length": 8'))
    fetched = cache.fetch("k", tmp_path / "fetched")
    assert fetched is not None
    assert fetched.model.max_length == 16


def test_a_bad_destination_leaves_the_entry_alone(bundle: Bundle, tmp_path: Path) -> None:
    cache = Cache(root=tmp_path / "cache")
    cache.keep("k", bundle.root)
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="file"):
        cache.fetch("k", tmp_path / "file" / "out")
    assert cache.fetch("k", tmp_path / "fetched") is not None


def test_the_oldest_entries_go_when_the_bound_is_passed(bundle: Bundle, tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in bundle.root.rglob("*") if path.is_file())
    cache = Cache(root=tmp_path / "cache", max_bytes=2 * size + size // 2)
    for age, key in enumerate(("old", "middle", "new")):
        cache.keep(key, bundle.root)
        os.utime(tmp_path / "cache" / "bundles" / key, (age, age))
    cache.keep("newest", bundle.root)
    assert sorted(path.name for path in (tmp_path / "cache" / "bundles").iterdir()) == ["new", "newest"]


def test_processes_that_keep_and_fetch_one_entry_at_once_find_it_whole(
    bundle: Bundle, tmp_path: Path
) -> None:
    """ekhodzitsky/gigastt#339: two processes wrote one file of a cache, and what was read was half of each."""
    work = (
        "import sys; from pathlib import Path; from alula.bundles import Cache\n"
        "cache, built, mine = Cache(root=Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3])\n"
        "for at in range(12):\n"
        "    cache.keep('k', built)\n"
        "    found = cache.fetch('k', mine)\n"
        "    assert found is None or found.verified\n"
    )
    paths = [str(tmp_path / "cache"), str(bundle.root)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", work, *paths, str(tmp_path / f"own {at}")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for at in range(3)
    ]
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    found = Cache(root=tmp_path / "cache").fetch("k", tmp_path / "after")
    assert found is not None
    assert Bundle.open(found.root).verified
    assert [path.name for path in (tmp_path / "cache" / "bundles").iterdir()] == ["k"], "scraps are left"


def test_two_that_keep_a_new_entry_at_once_wait_for_each_other(bundle: Bundle, tmp_path: Path) -> None:
    cache = Cache(root=tmp_path / "cache")
    work = (
        "import sys; from pathlib import Path; from alula.bundles import Cache\n"
        "print('here', flush=True); Cache(root=Path(sys.argv[1])).keep('k', Path(sys.argv[2]))\n"
    )
    entries = cache.root / "bundles"
    entries.mkdir(parents=True)
    command = [sys.executable, "-c", work, str(cache.root), str(bundle.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with alone(entries):
            assert process.stdout.readline() == "here\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            shutil.copytree(bundle.root, entries / "k")
        assert process.wait(60) == 0
    assert cache.fetch("k", tmp_path / "mine") is not None


def test_the_key_depends_on_every_input_and_not_on_their_order() -> None:
    cache = Cache(root=Path("nowhere"))
    assert cache.key({"a": 1, "b": 2}) == cache.key({"b": 2, "a": 1})
    assert cache.key({"a": 1, "b": 2}) != cache.key({"a": 1, "b": 3})
