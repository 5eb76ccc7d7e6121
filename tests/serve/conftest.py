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
def server(bundles: dict[str, Path]) -> Iterator[served.Running]:
    """One server for all tests that do not hurt it."""
    with served.running(list(bundles.values()), max_client_batch=8) as running:
        yield running
