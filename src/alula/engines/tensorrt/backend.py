"""TensorRT as a backend: compiled in a process of its own, opened without torch."""

from __future__ import annotations

import json
import mmap
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

from alula.core.engine import LAYERS, Engine, Plan, Traits
from alula.core.errors import CompileError, EngineError
from alula.core.graph import Graph
from alula.core.places import cache_root
from alula.core.progress import Note, quiet
from alula.core.tensor import Feeds
from alula.core.timing import LayerTimes
from alula.core.words import refuse_unless_offered
from alula.engines import folder
from alula.engines.cuda import Cuda, devices
from alula.engines.cuda import installed as cuda_installed
from alula.engines.tensorrt import targets
from alula.engines.tensorrt.job import Job, cache_file
from alula.engines.tensorrt.session import TensorRtSession, opened
from alula.engines.tensorrt.shapes import of_two
from alula.engines.tensorrt.vendor import Features, features_of, load, number_of, version_of, why_absent

FILE = "engine.plan"


def traits_of(target: str) -> Traits:
    """What the version found here and this machine mean for a build."""
    version = version_of(target)
    if version is None:
        absent = why_absent(target)
        return Traits(cannot_run=absent, cannot_compile=absent)
    features, unable = features_of(target, number_of(version)), cannot_run(target)
    lacks = {} if features.bf16 else {"bf16": f"TensorRT {version} has no bf16; 10 and later have"}
    if not features.strip_weights:
        lacks["--strip-weights"] = (
            f"TensorRT {version} keeps weights in its engines; 10 and later can leave them out"
        )
    elif features.cpu_compiles and unable:
        lacks["--strip-weights"] = f"{target} leaves weights out on a GPU only, and {unable}"
    return Traits(
        opset=features.opset,
        lacks=lacks,
        cannot_run=unable,
        cannot_compile="" if features.cpu_compiles else unable,
    )


def cannot_run(target: str) -> str:
    """Why nothing of this target runs here; empty if it does."""
    if not cuda_installed():
        return "cuda-bindings is not installed here"
    found = devices()
    if not found:
        return "there is no CUDA GPU here"
    return targets.refuses_device(target, found[0])


class TensorRt:
    """TensorRT from 8.6 on, or TensorRT-RTX."""

    def __init__(self, name: str = "tensorrt") -> None:
        self.name = name
        self._version = version_of(name) or load(name).version

    @property
    def features(self) -> Features:
        """What this version has."""
        return features_of(self.name, number_of(self._version))

    @property
    def target(self) -> str:
        """Such as "tensorrt 8.6.0 x86_64 sm_90 NVIDIA H200"; TensorRT-RTX compiles for all GPUs that it runs on."""
        return self._target(portable=False)

    def compile(self, graph: Graph, plan: Plan, to: Path, *, note: Note = quiet) -> Engine:
        """Compile for the GPU in this machine; TensorRT-RTX needs none."""
        refuse_unless_offered(self.name, graph.precision)
        self._refuse(graph, plan)
        folder.refuse_existing(to)
        to.mkdir(parents=True)
        target = self._target(portable=plan.portable)
        try:
            run_job(self._job(graph, plan, to, target), plan.time_limit_s, note)
        except BaseException:
            shutil.rmtree(to, ignore_errors=True)
            raise
        engine = Engine(backend=self.name, target=target, path=to, graph=graph, plan=plan)
        folder.write(engine, (FILE,))
        return engine

    def open(self, engine: Engine, *, threads: int = 0) -> TensorRtSession:
        """Load an engine on the first GPU that is visible; `threads` is for CPUs."""
        cuda = Cuda()
        # The context takes longest, so it is made while the file is read and the library is imported.
        with ThreadPoolExecutor(1) as beside:
            started = beside.submit(cuda.start)
            with _mapped(engine.path / FILE) as plan:
                lib = load(self.name)
                failed = started.exception()
                if reason := cannot_run(self.name):
                    raise EngineError(f"{engine.path}: built for {engine.target!r}, but {reason}")
                if failed is not None:
                    raise failed
                folder.check(engine, self.target, targets.runs_on)
                return opened(engine, lib, cuda, plan)

    def layer_times(self, engine: Engine, feeds: Feeds, *, runs: int, threads: int = 0) -> LayerTimes:
        """Run with TensorRT's profiler on, launch by launch."""
        with closing(self.open(engine, threads=threads)) as session:
            return session.layer_times(feeds, runs)

    def _target(self, *, portable: bool) -> str:
        device = next(iter(devices()), None)
        return targets.target(self.name, self._version, platform.machine(), device, portable=portable)

    def _refuse(self, graph: Graph, plan: Plan) -> None:
        """What would fail after minutes, before they begin."""
        features = self.features
        if graph.precision == "bf16" and not features.bf16:
            raise CompileError(f"{self.name} {self._version} has no bf16; 10 and later have")
        if features.opset is not None and graph.opset > features.opset:
            raise CompileError(
                f"{self.name} {self._version} reads opset {features.opset} at most, {graph.path} has {graph.opset}; "
                f"build with --opset {features.opset}"
            )
        if plan.strip_weights and not features.strip_weights:
            raise CompileError(
                f"{self.name} {self._version} cannot leave weights out of an engine; 10 and later can"
            )
        if not features.cpu_compiles and (reason := cannot_run(self.name)):
            raise CompileError(f"{self.name} compiles on the GPU that is to run the engine; {reason}")

    def _job(self, graph: Graph, plan: Plan, to: Path, target: str) -> Job:
        told = map(of_two, plan.profiles) if self.features.one_query_wrong else plan.profiles
        profiles = tuple({spec.name: p.shapes(spec) for spec in graph.inputs} for p in told)
        cache = cache_file(cache_root(), target) if self.features.timing_cache else None
        return Job(
            target=self.name,
            graph=os.fspath(graph.path.absolute()),
            engine=os.fspath((to / FILE).absolute()),
            layers=os.fspath((to / LAYERS).absolute()),
            profiles=profiles,
            workspace_bytes=plan.workspace_bytes,
            level=plan.level,
            portable=plan.portable,
            strip_weights=plan.strip_weights,
            timing_cache=None if cache is None else os.fspath(cache),
        )


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    """The bytes of a file, all read at once; none where there is none, since the record knows what is missing."""
    if not path.is_file() or not path.stat().st_size:
        yield memoryview(b"")
        return
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_POPULATE", 0)
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as content,
    ):
        yield content


def run_job(job: Job, limit_s: float | None, note: Note) -> None:
    """Have another process do a job; it is gone when this returns, whatever happened."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "alula.engines.tensorrt.compiling", str(writing)]
    with tempfile.TemporaryFile() as complaints, os.fdopen(reading, encoding="utf-8") as messages:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=complaints, stderr=complaints, pass_fds=(writing,)
            )
        finally:
            os.close(writing)
        late = threading.Event()
        timer = threading.Timer(limit_s or 0, _end, (child, late))
        timer.daemon = True
        try:
            if limit_s is not None:
                timer.start()
            assert child.stdin is not None
            _tell(child.stdin, job.to_json())
            error, done = _listen(messages, note)
            child.wait()
        finally:
            timer.cancel()
            child.kill()
            child.wait()
            if child.stdin is not None:
                child.stdin.close()
        if late.is_set() and not done:
            raise CompileError(
                f"{job.target}: the time limit of {limit_s:g} s ended the build of {job.graph}; raise --time-limit, "
                "lower --level, or build fewer sizes"
            )
        if error or not done:
            raise CompileError(error or _died(job, child.returncode, complaints))


def _end(child: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    child.kill()


def _tell(stdin: IO[bytes], text: str) -> None:
    try:
        stdin.write(text.encode() + b"\n")
        stdin.flush()
    except BrokenPipeError:
        # It ended before it read; why is said by its messages or its exit.
        return


def _listen(messages: IO[str], note: Note) -> tuple[str, bool]:
    """The error that was told, and whether the job was done."""
    error, done = "", False
    for line in messages:
        message = json.loads(line)
        if "note" in message:
            note(str(message["note"]))
        error = str(message.get("error", error))
        done = done or bool(message.get("done"))
    return error, done


def _died(job: Job, code: int, complaints: IO[bytes]) -> str:
    complaints.seek(0)
    lines = complaints.read().decode(errors="replace").strip().splitlines()
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return (
        f"{job.target}: compiling {job.graph} ended with {how}: {lines[-1] if lines else 'nothing was said'}"
    )
