"""Real models for every suite, made once per session."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import packaged
import packaged_t5
import pytest
from gpus import REASON
from hypothesis import settings
from once import once

# PyTorch's threads wait for one another by turning round and round: where something else runs beside it, a small model
# costs ten times as much. Read where PyTorch is loaded, here and in what tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# How long an example takes is the machine's affair; a test has its own limit.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_collection_finish() -> None:
    """All that was imported stays, and is looked through no more by whoever collects what is left of a test."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What no GPU, no browser and no Prometheus proved is said at the end, where it is read."""
    unseen = [r for r in terminalreporter.stats.get("skipped", []) if "NO BROWSER" in str(r.longrepr)]
    if unseen:
        terminalreporter.write_sep(
            "!", f"{len(unseen)} skips: the page at / was seen by NO BROWSER", yellow=True
        )
    unasked = [r for r in terminalreporter.stats.get("skipped", []) if "NO PROMETHEUS" in str(r.longrepr)]
    if unasked:
        terminalreporter.write_sep(
            "!", f"{len(unasked)} skips: dashboard and alerts were asked of NO PROMETHEUS", yellow=True
        )
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if "NOT RUN ON A GPU" in str(r.longrepr)]
    if skipped:
        terminalreporter.write_sep(
            "!", f"{len(skipped)} tests of the TensorRT run side were NOT RUN ON A GPU: {REASON}", yellow=True
        )


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    return packaged.minilm()


@pytest.fixture(scope="session")
def rampart_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "rampart", packaged.rampart)


@pytest.fixture(scope="session")
def quire_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "quire", packaged.quire)


@pytest.fixture(scope="session")
def efficientnet_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "efficientnet-lite0", packaged.efficientnet)


@pytest.fixture(scope="session")
def dinov2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "dinov2-small", packaged.dinov2)


@pytest.fixture(scope="session")
def open_nsfw_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "open-nsfw", packaged.open_nsfw)


@pytest.fixture(scope="session")
def flan_t5_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "flan", packaged_t5.flan_t5)
