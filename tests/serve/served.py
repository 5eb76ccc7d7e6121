"""Small bundles, and servers in processes of their own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom
from typing import Any

import httpx
import numpy as np
import parrot
import scripted_engine
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from alula.bundles import Bundle, Draft, Manifest, Stored, writing
from alula.core.check import Check
from alula.core.engine import Plan
from alula.core.graph import Graph
from alula.core.model import ModelSpec, Part
from alula.core.profile import Profile, Range
from alula.core.tensor import Dim, TensorSpec
from alula.engines import backend

SCRIPTED = (sys.executable, scripted_engine.__file__)

OUTPUTS: dict[str, tuple[TensorSpec, ...]] = {
    "embeddings": (TensorSpec(name="embedding", dtype="float32", shape=("batch", 4)),),
    "sequence-classification": (TensorSpec(name="logits", dtype="float32", shape=("batch", 3)),),
    "reranking": (TensorSpec(name="logits", dtype="float32", shape=("batch", 1)),),
    "token-classification": (TensorSpec(name="logits", dtype="float32", shape=("batch", "length", 3)),),
    "question-answering": tuple(
        TensorSpec(name=name, dtype="float32", shape=("batch", "length"))
        for name in ("start_logits", "end_logits")
    ),
}
LABELS = {
    "sequence-classification": ("sad", "glad", "mad"),
    "reranking": ("relevant",),
    "token-classification": ("O", "B-CITY", "I-CITY"),
}
PASSED = Check(
    output="embedding",
    metric="cosine",
    samples=4,
    worst=1.0,
    mean=1.0,
    limit=0.999,
    higher_is_better=True,
    reference="pytorch",
)


def spec(task: str) -> ModelSpec:
    inputs = tuple(
        TensorSpec(name=name, dtype="int64", shape=("batch", "length"))
        for name in ("input_ids", "attention_mask")
    )
    return ModelSpec(
        name=f"tiny/{task}",
        digest="0" * 64,
        revision="main",
        architecture="TinyModel",
        family="tiny",
        task=task,
        parts=(Part(name="encoder", inputs=inputs, outputs=OUTPUTS[task]),),
        max_length=64,
        vocab_size=len(scripted_engine.WORDS),
        pad_id=0,
        labels=LABELS.get(task, ()),
        activation="softmax" if task in LABELS else "none",
    )


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel(scripted_engine.IDS, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return made


def no_graph(
    draft: Draft, part: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> Graph:
    """What stands for the graph of a part, whose engine needs none."""
    path = draft.graph_path(part, "fp32")
    path.write_bytes(b"no graph")
    return Graph(
        path=path,
        digest="0" * 64,
        opset=23,
        nodes=1,
        precision="fp32",
        inputs=inputs,
        outputs=outputs,
    )


def make_bundle(
    to: Path,
    task: str = "embeddings",
    *,
    name: str | None = None,
    batch: Range = Range(1, 4, 4),  # noqa: B008 - frozen
    length: Range = Range(2, 8, 48),  # noqa: B008
    checks: tuple[Check, ...] = (PASSED,),
    target: str | None = None,
    reference: float | None = None,
) -> Path:
    """A bundle with the fake engine; `reference` fills its stored outputs in place of what the engine gives."""
    model = spec(task)
    model = replace(model, name=name or model.name)
    profile = Profile({"batch": batch, "length": length})
    part = model.part("encoder")
    with writing(to) as draft:
        graph = no_graph(draft, "encoder", part.inputs, part.outputs)
        runtime = backend("fake")
        engine = runtime.compile(graph, Plan(profile=profile), draft.engine_path("encoder", "fake"))
        rows = max(batch.min, min(2, batch.max))
        ids = np.array(([[2, 4, 3], [2, 5, 0]] * rows)[:rows], dtype=np.int64)
        ids = np.pad(ids, ((0, 0), (0, max(0, length.min - 3))))
        feeds = {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}
        outputs = dict(runtime.open(engine).run(feeds))
        if reference is not None:
            outputs = {key: np.full_like(array, reference) for key, array in outputs.items()}
        (draft.scratch / "tokenizer").mkdir()
        tokenizer().save(str(draft.scratch / "tokenizer" / "tokenizer.json"))
        manifest = Manifest(
            model=model,
            source="tests",
            graphs={graph.path.stem: graph},
            engines={"encoder": replace(engine, target=target or engine.target)},
            rungs=(),
            files=(),
            built_on={},
        )
        draft.finish(manifest, checks, (), Stored(reference="pytorch", feeds=(feeds,), outputs=(outputs,)))
    Bundle.open(to)
    return to


TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}|"


def make_writer(
    to: Path,
    task: str = "text-generation",
    *,
    name: str = "",
    chat: bool = True,
    max_length: int = 512,
    vocab_size: int = parrot.VOCABULARY,
) -> Path:
    """A bundle whose scripted engine is a parrot; the fake engine in it is never opened."""
    encodes = task == "text2text-generation"
    ids = TensorSpec(name="input_ids", dtype="int64", shape=("batch", "length"))
    logits = TensorSpec(name="logits", dtype="float32", shape=("batch", "length", parrot.VOCABULARY))
    parts = ("encoder", "cross", "decoder") if encodes else ("decoder",)
    model = replace(
        spec("embeddings"),
        name=name or f"tiny/{task}",
        task=task,
        parts=tuple(Part(name=part, inputs=(ids,), outputs=(logits,)) for part in parts),
        max_length=max_length,
        vocab_size=vocab_size,
        end_ids=(parrot.END,),
        start_id=parrot.START if encodes else -1,
    )
    profile = Profile({"batch": Range(1, 1, 4), "length": Range(1, 8, max_length)})
    with writing(to) as draft:
        graphs, engines = {}, {}
        for part in parts:
            graph = no_graph(draft, part, (ids,), (logits,))
            graphs[graph.path.stem] = graph
            engines[part] = backend("fake").compile(
                graph, Plan(profile=profile), draft.engine_path(part, "fake")
            )
        folder = draft.scratch / "tokenizer"
        folder.mkdir()
        parrot.tokenizer().save(str(folder / "tokenizer.json"))
        if chat:
            (folder / "chat_template.jinja").write_text(TEMPLATE)
        manifest = Manifest(
            model=model, source="tests", graphs=graphs, engines=engines, rungs=(), files=(), built_on={}
        )
        feeds = {"input_ids": np.array([[1, 2]], np.int64)}
        outputs = {"logits": np.zeros((1, 2, parrot.VOCABULARY), np.float32)}
        draft.finish(manifest, (PASSED,), (), Stored(reference="pytorch", feeds=(feeds,), outputs=(outputs,)))
    return to


def make_reader(to: Path, task: str = "image-classification") -> Path:
    """A bundle whose scripted engine reads images: their colours, lines whose columns are letters, or bright places."""
    lines, pages = task == "text-recognition", task == "text-detection"
    pixels, given, axes = _read_by(task)
    model = replace(
        spec("embeddings"),
        name=f"tiny/{task}",
        task=task,
        family="ppocr" if lines else "onnx" if pages else "resnet",
        parts=(Part(name="encoder", inputs=(pixels,), outputs=(given,)),),
        max_length=0,
        vocab_size=0,
        labels=("", "a", "b", "c", "d") if lines else () if pages else ("red", "green", "blue", "rows"),
    )
    profile = Profile({"batch": Range(1, 4, 4), **axes})
    smallest = {axis: sizes.min for axis, sizes in profile.axes.items()}
    with writing(to) as draft:
        graph = no_graph(draft, "encoder", (pixels,), (given,))
        engine = backend("fake").compile(graph, Plan(profile=profile), draft.engine_path("encoder", "fake"))
        folder = draft.scratch / "processor"
        folder.mkdir()
        told: dict[str, Any] = {"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}
        if pages:
            told["limit_side_len"] = 64
        else:
            told |= {"image_processor_type": "ViTImageProcessor", "size": {"height": 4, "width": 4}}
        (folder / "preprocessor_config.json").write_text(json.dumps(told))
        feeds, outputs = (
            {tensor.name: np.zeros(tensor.sized(smallest), np.float32)} for tensor in (pixels, given)
        )
        manifest = Manifest(
            model=model,
            source="tests",
            graphs={graph.path.stem: graph},
            engines={"encoder": engine},
            rungs=(),
            files=(),
            built_on={},
        )
        draft.finish(manifest, (PASSED,), (), Stored(reference="pytorch", feeds=(feeds,), outputs=(outputs,)))
    return to


def make_arrays(to: Path) -> Path:
    """A bundle whose scripted engine takes arrays: sums of rows, and how many rows ran together."""
    inputs = (
        TensorSpec(name="x", dtype="float32", shape=("batch", "wide")),
        TensorSpec(name="k", dtype="int32", shape=("batch",), range=(0, 9)),
    )
    outputs = (
        TensorSpec(name="sum", dtype="float32", shape=("batch", "wide")),
        TensorSpec(name="rows", dtype="float32", shape=("batch", 1)),
    )
    model = replace(
        spec("embeddings"),
        name="tiny/arrays",
        task="tensors",
        family="onnx",
        parts=(Part(name="encoder", inputs=inputs, outputs=outputs),),
        max_length=0,
        vocab_size=0,
    )
    profile = Profile({"batch": Range(1, 4, 4), "wide": Range(1, 2, 8)})
    with writing(to) as draft:
        graph = no_graph(draft, "encoder", inputs, outputs)
        engine = backend("fake").compile(graph, Plan(profile=profile), draft.engine_path("encoder", "fake"))
        manifest = Manifest(
            model=model,
            source="tests",
            graphs={graph.path.stem: graph},
            engines={"encoder": engine},
            rungs=(),
            files=(),
            built_on={},
        )
        feeds = {"x": np.zeros((1, 2), np.float32), "k": np.zeros(1, np.int32)}
        given = {"sum": np.zeros((1, 2), np.float32), "rows": np.ones((1, 1), np.float32)}
        draft.finish(manifest, (PASSED,), (), Stored(reference="pytorch", feeds=(feeds,), outputs=(given,)))
    return to


def picture(colour: tuple[int, int, int]) -> bytes:
    """An image of one colour, as a file."""
    file = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(file, "PNG")
    return file.getvalue()


def _read_by(task: str) -> tuple[TensorSpec, TensorSpec, dict[str, Range]]:
    """What such an engine takes and gives, and which sizes of it."""

    def tensor(name: str, *shape: Dim) -> TensorSpec:
        return TensorSpec(name=name, dtype="float32", shape=("batch", *shape))

    if task == "text-recognition":
        axes = {"width": Range(32, 64, 320)}
        return tensor("x", 3, 8, "width"), tensor("probabilities", "width", 5), axes
    if task == "text-detection":
        axes = dict.fromkeys(("height", "width"), Range(32, 64, 256))
        return tensor("x", 3, "height", "width"), tensor("probabilities", 1, "height", "width"), axes
    given = tensor("embedding" if task == "image-embeddings" else "logits", 4)
    return tensor("pixel_values", 3, 4, 4), given, {}


SERVE = """
import json, os, resource, sys
from pathlib import Path
from alula.core.errors import AlulaError
from alula.serve import ServeOptions, serve
if files := os.environ.get("SERVED_OPEN_FILES"):
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(files), int(files)))
given = json.loads(sys.argv[1])
for key in {"bundles", "engine_command", "fallback", "devices"} & set(given):
    given[key] = tuple(map(Path if key == "bundles" else str, given[key]))
try:
    serve(ServeOptions(**given), on_ready=lambda url: print(url, flush=True))
except AlulaError as error:
    sys.exit(f"{type(error).__name__}: {error}")
print("loaded:", *sorted({name.split(".")[0] for name in sys.modules}))
"""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server that answers."""

    process: subprocess.Popen[str]
    url: str
    client: httpx.Client

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.client.post(path, json=body, headers=headers)

    def get(self, path: str) -> Any:
        return self.client.get(path).json()

    def engine_pid(self) -> int:
        return int(self.get("/health/live")["engine"]["pid"])

    def restarted(self) -> bool:
        """Whether an engine that was started again answers."""
        health = self.get("/health/live")
        return bool(health["ready"] and health["engine"]["restarts"])

    def stop(self, number: int = signal.SIGTERM, within_s: float = 15) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=within_s)
        return self.process.returncode, out, err


def start(bundles: list[Path], env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    given = {
        "bundles": [str(path) for path in bundles],
        "port": 0,
        "engine_command": SCRIPTED,
        **options,
    }
    return subprocess.Popen(
        [sys.executable, "-c", SERVE, json.dumps(given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
    )


@contextlib.contextmanager
def running(bundles: list[Path], env: dict[str, str] | None = None, **options: Any) -> Iterator[Running]:
    process = start(bundles, env, **options)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise AssertionError(process.communicate(timeout=15)[1])
        with httpx.Client(base_url=url, timeout=20) as client:
            yield Running(process=process, url=url, client=client)
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def free_port() -> int:
    """One that nobody listens on, below those that whoever connects is given: it stays free."""
    for port in SystemRandom().sample(range(20_000, 32_000), 20):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("of 20 ports none is free")


@contextlib.contextmanager
def gated(bundle: Path, gate: Path, **options: Any) -> Iterator[Running]:
    """A server whose engine keeps texts with "slow" in them until the file `gate` is there."""
    with running([bundle], env={"SCRIPTED_GATE": str(gate)}, **options) as server:
        try:
            yield server
        finally:
            gate.touch()


def refused(bundles: list[Path], env: dict[str, str] | None = None, **options: Any) -> str:
    """What a server says that does not start."""
    process = start(bundles, env, **options)
    out, err = process.communicate(timeout=30)
    assert out == ""
    assert process.returncode == 1
    return err


def metric(server: Running, name: str, **labels: str) -> float:
    """The value of the first series of a name that has these labels; 0 if there is none."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    for line in server.client.get("/metrics").text.splitlines():
        if line.startswith((name + "{", name + " ")) and all(label in line for label in wanted):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def wait_until(true: Callable[[], bool], within_s: float = 10) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "did not come about in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"
