"""Triton with its Python backend, as another server of the same model to be measured beside ours.

`tritonserver` is that of the package nvidia-pytriton, in an environment of its own (Python 3.11, with onnxruntime,
openvino and tokenizers beside it): python3.11 -m venv TRITON && TRITON/bin/pip install nvidia-pytriton onnxruntime
openvino tokenizers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loads import Load, Target, loaded

MODEL = Path(__file__).with_name("triton_model.py")
PATH = "/v2/models/minilm/infer"
BATCH = 32
START_S = 60.0

CONFIG = """
name: "minilm"
backend: "python"
max_batch_size: {batch}
input {{ name: "TEXT" data_type: TYPE_STRING dims: [1] }}
output {{ name: "EMBEDDING" data_type: TYPE_FP32 dims: [384] }}
instance_group {{ count: {instances} kind: KIND_CPU }}
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
parameters {{ key: "engine" value: {{ string_value: "{engine}" }} }}
parameters {{ key: "file" value: {{ string_value: "{file}" }} }}
parameters {{ key: "tokenizer" value: {{ string_value: "{tokenizer}" }} }}
parameters {{ key: "threads" value: {{ string_value: "{threads}" }} }}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Which engine runs which file, in how many processes of how many threads, and how long a batch may wait."""

    engine: str
    file: Path
    tokenizer: Path
    instances: int
    threads: int
    delay_us: int = 0


class Triton:
    """One server, as long as the block lasts; `home` is its environment, `work` a folder for its model repository."""

    def __init__(self, home: Path, work: Path, setup: Setup, port: int) -> None:
        self._home, self._work, self._setup = home.absolute(), work.absolute(), setup
        self._port = port
        self.url = f"http://127.0.0.1:{port}"

    def __enter__(self) -> Triton:
        self._work.mkdir(parents=True, exist_ok=True)
        server = next(self._home.glob("lib/python3*/site-packages/pytriton/tritonserver"))
        repository, backends = self._repository(), self._backends(server)
        self._log = (self._work / "log").open("wb")
        self._process = subprocess.Popen(
            [
                *(str(server / "bin" / "tritonserver"), f"--model-repository={repository}"),
                *(f"--backend-directory={backends}", f"--http-port={self._port}", "--allow-grpc=false"),
                *("--allow-metrics=false", "--allow-gpu-metrics=false", "--http-address=127.0.0.1"),
            ],
            env={**os.environ, "PATH": f"{self._home / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": ""},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def load(self, bodies: Path, clients: int, seconds: int) -> Load:
        """What so many clients see of the texts of these bodies, which are OpenAI's."""
        own = self._work / "bodies.txt"
        if not own.is_file():
            given = [json.loads(line)["input"] for line in bodies.read_text().splitlines()]
            own.write_text("".join(json.dumps(_asking(text)) + "\n" for text in given))
        return loaded(Target(url=self.url, path=PATH, pids=self.pids), own, clients, seconds)

    @property
    def pids(self) -> list[int]:
        """The server and its models' processes."""
        found, at = [self._process.pid], 0
        while at < len(found):
            for task in Path(f"/proc/{found[at]}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
            at += 1
        return found

    def _repository(self) -> Path:
        setup, folder = self._setup, self._work / "models"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "minilm" / "1").mkdir(parents=True)
        shutil.copy(MODEL, folder / "minilm" / "1" / "model.py")
        config = CONFIG.format(
            batch=BATCH,
            instances=setup.instances,
            delay_us=setup.delay_us,
            engine=setup.engine,
            file=setup.file.absolute(),
            tokenizer=setup.tokenizer.absolute(),
            threads=setup.threads,
        )
        (folder / "minilm" / "config.pbtxt").write_text(config)
        return folder

    def _backends(self, server: Path) -> Path:
        """The Python backend beside the stub for this Python, which must be a link: its libraries lie beside it."""
        folder = self._work / "backends"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(server / "backends" / "python", folder / "python")
        stub = folder / "python" / "triton_python_backend_stub"
        stub.unlink(missing_ok=True)
        version = server.parent.parent.parent.name.removeprefix("python")
        stub.symlink_to(server / "python_backend_stubs" / version / stub.name)
        return folder

    def _wait(self) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/v2/models/minilm/ready"):
                    return
            except OSError:
                time.sleep(0.1)
        self._process.kill()
        raise SystemExit(f"Triton did not start; {self._work / 'log'} says why")


def _asking(text: str) -> dict[str, Any]:
    return {"inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]}
