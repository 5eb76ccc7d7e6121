from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_runtime_tells_its_maker_nothing(name: str, tmp_path: Path) -> None:
    for folder in ("home", "temporary"):
        (tmp_path / folder).mkdir()
    # Both keep quiet in CI, which says so by this variable.
    env = {key: value for key, value in os.environ.items() if key not in {"ORT_DISABLE_TELEMETRY", "CI"}}
    env |= {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temporary")}
    program = f"from alula.engines import backend; backend({name!r})"
    subprocess.run([sys.executable, "-c", program], env=env, check=True)
    # What they know a machine by, and what is not sent yet, they keep in files.
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
