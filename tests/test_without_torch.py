"""Where importing torch or transformers fails: the package is imported, a model is built, and it is served."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import alula

pytestmark = pytest.mark.timeout(300)

# Python runs this file first in every process that has its folder on the path, the engine process too.
BLOCKER = """
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {names!r} else found(name, path, target)
PathFinder.find_spec = find_spec
"""
FRAMEWORKS = ("torch", "transformers", "onnxscript", "sentence_transformers")
NOT_FOR_SERVING = (*FRAMEWORKS, "onnx", "onnx_ir", "safetensors", "huggingface_hub", "ml_dtypes")


def blocking(folder: Path, names: tuple[str, ...], **more: str) -> dict[str, str]:
    """An environment whose interpreters cannot import `names`."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCKER.format(names=names))
    paths = [str(folder), str(Path(alula.__file__).parent.parent)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}


def python(*args: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args], env=env, capture_output=True, text=True, check=False, timeout=240
    )


@pytest.fixture(scope="module")
def built(minilm_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle built in a process that cannot import a framework."""
    folder = tmp_path_factory.mktemp("blocked")
    env = blocking(folder / "site", FRAMEWORKS, ALULA_CACHE=str(folder / "cache"))
    options = ("--reference", "golden", "--precision", "fp32", "--length", "2:32:128", "--json")
    done = python("-m", "alula", "build", str(minilm_folder), "-o", str(folder / "out"), *options, env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verified"] is True
    return folder / "out"


def test_the_blocker_blocks(tmp_path: Path) -> None:
    for name in FRAMEWORKS:
        done = python("-c", f"import {name}", env=blocking(tmp_path / name, FRAMEWORKS))
        assert f"No module named '{name}'" in done.stderr


def test_importing_the_package_loads_only_the_standard_library(tmp_path: Path) -> None:
    code = (
        "import sys; before = set(sys.modules); import alula\n"
        "loaded = {name for name, module in sys.modules.items() if module is not None} - before\n"
        "print(sorted({name.partition('.')[0] for name in loaded} - sys.stdlib_module_names))"
    )
    done = python("-c", code, env=blocking(tmp_path / "site", FRAMEWORKS))
    assert done.stdout.strip() == "['alula']", done.stderr


def test_every_module_but_those_that_own_torch_is_imported(tmp_path: Path) -> None:
    root = Path(alula.__file__).parent
    owning = ("engines/torch.py", "engines/torch_seeing.py", "engines/torch_writing.py", "families/traced.py")
    owners = {root / name for name in owning}
    names = [
        ".".join(path.relative_to(root.parent).with_suffix("").parts)
        for path in sorted(root.rglob("*.py"))
        if path not in owners and path.stem not in {"__init__", "__main__"}
    ]
    code = f"import importlib\nfor name in {names!r}: importlib.import_module(name)\nprint('all')"
    done = python("-c", code, env=blocking(tmp_path / "site", FRAMEWORKS))
    assert done.stdout == "all\n", done.stderr


def test_a_written_family_is_built_and_verified(built: Path) -> None:
    assert (built / "manifest.json").is_file()


def test_what_needs_torch_says_which_extra_brings_it(minilm_folder: Path, tmp_path: Path) -> None:
    env = blocking(tmp_path / "site", FRAMEWORKS, ALULA_CACHE=str(tmp_path / "cache"))
    model, to = str(minilm_folder), str(tmp_path / "out")
    done = python("-m", "alula", "build", model, "-o", to, "--reference", "pytorch", env=env)
    assert done.returncode == 2, done.stderr
    assert "pip install 'alula[torch]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_both_processes_of_a_server_work_with_the_serving_extra_alone(built: Path, tmp_path: Path) -> None:
    env = blocking(tmp_path / "site", NOT_FOR_SERVING, ALULA_CACHE=str(tmp_path / "cache"))
    process = subprocess.Popen(
        [sys.executable, "-m", "alula", "serve", str(built), "--port", "0"],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        url = re.search(r"serving on (\S+)", said)
        assert url, said + process.stderr.read()
        body = json.dumps({"inputs": "a red guitar"}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url[1]}/embed", body), timeout=30) as answer:
            (vector,) = json.load(answer)
        assert len(vector) == 384
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_one_answer_without_a_server_needs_no_framework_either(built: Path, tmp_path: Path) -> None:
    env = blocking(tmp_path / "site", NOT_FOR_SERVING, ALULA_CACHE=str(tmp_path / "cache"))
    done = python("-m", "alula", "run", str(built), "--text", "a red guitar", "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rows"][0]["embedding"]) == 384
