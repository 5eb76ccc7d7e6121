from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import served

TASKS = tuple(served.OUTPUTS)


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bundles")
    return {task: served.make_bundle(root / task, task) for task in TASKS}


@pytest.fixture(scope="session")
def server(bundles: dict[str, Path], writers: dict[str, Path]) -> Iterator[served.Running]:
    """One server for all tests that do not hurt it."""
    with served.running([*bundles.values(), writers["chat"]], max_client_batch=8) as running:
        yield running


@pytest.fixture(scope="session")
def writers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("writers")
    return {
        "chat": served.make_writer(root / "chat"),
        "plain": served.make_writer(root / "plain", name="tiny/plain", chat=False),
        "text2text": served.make_writer(root / "text2text", "text2text-generation"),
    }


@pytest.fixture(scope="session")
def writing(writers: dict[str, Path], bundles: dict[str, Path]) -> Iterator[served.Running]:
    """One server whose models write, and one that embeds, for all tests that do not hurt it."""
    with served.running([*writers.values(), bundles["embeddings"]], max_client_batch=16) as running:
        yield running
