"""Checkpoints by hub id: fetched from a hub that runs here, or refused soon and with what to do."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
from safetensors.numpy import save

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 20,
}
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "model.safetensors": save({"weight": np.ones(3, np.float32)}),
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    "pytorch_model.bin": b"never fetched",
    "onnx/model.onnx": b"never fetched",
}
OPEN = """
import sys
from alula.core.errors import InputError
from alula.families import open_checkpoint
try:
    found = open_checkpoint(*sys.argv[1:])
    print(found.name, found.revision, sorted(path.name for path in found.root.rglob("*.*")))
except InputError as error:
    print(error)
"""


class Hub(BaseHTTPRequestHandler):
    """One repository, "tiny/model", with one commit."""

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/tiny/model/revision/"):
            named = self.path.rpartition("/")[2]
            siblings = [{"rfilename": name} for name in FILES]
            if named in {"main", COMMIT}:
                self._send(
                    200, json.dumps({"id": "tiny/model", "sha": COMMIT, "siblings": siblings}).encode()
                )
                return
            self._send(404, b"{}", {"x-error-code": "RevisionNotFound"})
            return
        if self.path.startswith(f"/api/models/tiny/model/tree/{COMMIT}"):
            files = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in FILES.items()
            ]
            self._send(200, json.dumps(files).encode())
            return
        name = self.path.partition(f"/resolve/{COMMIT}/")[2]
        if name in FILES:
            etag = hashlib.sha256(FILES[name]).hexdigest()
            self._send(200, FILES[name], {"etag": f'"{etag}"', "x-repo-commit": COMMIT})
            return
        self._send(404, b"{}", {"x-error-code": "RepoNotFound"})

    do_HEAD = do_GET  # noqa: N815 - named by the standard library

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that takes calls and never says a word, as some firewalls do."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def opened(endpoint: str, home: Path, *given: str) -> str:
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    env.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", OPEN, *given], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_a_checkpoint_is_fetched_by_its_id_and_named_by_its_commit(hub: str, tmp_path: Path) -> None:
    fetched = ["chat_template.jinja", "config.json", "model.safetensors", "tool_use.jinja"]
    expected = f"tiny/model {COMMIT} {fetched}"
    assert opened(hub, tmp_path, "tiny/model") == expected
    assert opened(hub, tmp_path, "tiny/model", COMMIT) == expected
    gone = "http://127.0.0.1:9"
    assert opened(gone, tmp_path, "tiny/model", COMMIT) == expected, "what was fetched once needs no network"


@pytest.mark.parametrize("given", [("tiny/other",), ("tiny/model", "v9")])
def test_what_the_hub_does_not_have_is_refused_with_what_to_do(
    given: tuple[str, ...], hub: str, tmp_path: Path
) -> None:
    said = opened(hub, tmp_path, *given)
    revision = given[1] if len(given) > 1 else "main"
    assert said.startswith(
        f"no folder {given[0]}, and fetching {given[0]!r} at {revision!r} from the hub failed"
    )
    assert said.endswith("or give a local folder")
    assert "\n" not in said


def test_a_hub_that_says_nothing_is_not_waited_for(silent: str, tmp_path: Path) -> None:
    start = perf_counter()
    said = opened(silent, tmp_path, "tiny/model")
    assert perf_counter() - start < 25  # five seconds, and what the imports take on a busy machine
    assert said.startswith("no folder tiny/model, and fetching 'tiny/model' at 'main' from the hub failed: ")
    assert "\n" not in said


def test_a_model_of_the_hub_without_a_tokenizer_is_refused_by_build(hub: str, tmp_path: Path) -> None:
    env = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    env.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-m", "alula", "build", "tiny/model", "-o", str(tmp_path / "out")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    said = done.stderr.splitlines()[-1]
    assert said.startswith(
        "alula: tiny/model has no tokenizer.json, without which a bundle cannot take texts;"
    )
    assert "from_pretrained('tiny/model', use_fast=True)" in said
    assert not (tmp_path / "out").exists()
