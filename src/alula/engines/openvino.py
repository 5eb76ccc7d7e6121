"""OpenVINO on the CPU."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import openvino as ov

from alula.core.decoding import Room
from alula.core.engine import Engine, Plan
from alula.core.errors import CompileError, EngineError, RunError, ShapeError
from alula.core.graph import Graph
from alula.core.machine import cpu_features
from alula.core.packing import NARROW, ROWS, WIDTH, beside, is_packed, widest, without_packing
from alula.core.profile import Profile, Range, admit
from alula.core.progress import Note, quiet
from alula.core.tensor import Dim, Feeds, TensorSpec
from alula.core.timing import LayerTimes
from alula.engines import folder, host
from alula.engines.foreign import said
from alula.engines.layers import write_layers
from alula.engines.paged.graph import is_paged
from alula.engines.paged.session import Paged, compiled, ways

DEVICE = "CPU"

# The blob holds the weights a second time on disk, and in memory once. Tried with MiniLM (86 MiB of weights, Zen 3):
# seconds to load and MiB resident after 8x128 tokens are 0.15 and 268 for the mapped blob, 0.30 and 287 for one that
# is read, 0.42 and 296 for OpenVINO's IR, 0.52 and 298 for ONNX compiled at open. Blobs without weights load only
# where OpenVINO's own cache wrote them, and in 0.49 seconds.
FILE = "engine.blob"
KERNELS = 512
"""Of each kind, so many are kept by a lane, those that ran last. A shape that is new to MiniLM takes 1 MiB of them and
some 10 ms, and OpenVINO would keep 5,000, which is no bound: a server has 960 shapes of up to 256 tokens.
"""
OF_SHAPES = "shape_inference"
"""Stands in every error of OpenVINO's whose cause are sizes that do not fit: the path of its source that found them."""


class OpenVino:
    """Compiles with OpenVINO; the engine is a blob that is memory-mapped when opened."""

    name = "openvino"

    @property
    def target(self) -> str:
        """Such as "openvino 2026.4.1 x86_64 avx2"."""
        return host.target(self.name, _version())

    def compile(self, graph: Graph, plan: Plan, to: Path, *, note: Note = quiet) -> Engine:
        """Compile for this CPU within the profile's bounds, and keep the result."""
        folder.refuse_existing(to)
        if is_paged(graph.inputs):
            return self._record(graph, plan, to)
        core = ov.Core()
        try:
            model = core.read_model(graph.path)
            profile = _with_rows(plan.profile) if is_packed(graph.inputs) else plan.profile
            model.reshape({spec.name: _bounds(spec, profile) for spec in graph.inputs})
            compiled = core.compile_model(model, DEVICE, settings(threads=1))
            check_hint(_hint(compiled))
            to.mkdir(parents=True)
            (to / FILE).write_bytes(compiled.export_model().getbuffer())
        except RuntimeError as error:
            raise CompileError(f"openvino cannot compile {graph.path}: {said(error)}") from error
        engine = Engine(backend=self.name, target=self.target, path=to, graph=graph, plan=plan)
        folder.write(engine, (FILE,))
        write_layers(engine, self.name, _version(), layers_of(compiled))
        return engine

    def open(self, engine: Engine, *, threads: int = 0) -> OpenVinoSession:
        """Map the blob into memory and make it ready to run."""
        if is_paged(engine.inputs):
            raise EngineError(
                f"{engine.path}: a decoder that keeps its cache; open it with engines.open_decoding"
            )
        return self._open(engine, settings(host.threads_or_all(threads)))

    def open_lanes(self, engine: Engine, *, threads: int = 0, lanes: int = 0) -> OpenVinoSession:
        """As `open`, with a lane for every few threads: those of one call wait for one another, more so on busy cores.

        MiniLM in bf16, two Zen 5 cores, batches of 8 texts by length: two lanes of one thread do 1.2 times as many
        texts per second as one lane of two, and 1.5 times where another process takes a third of a core.
        """
        cores = host.threads_or_all(threads)
        return self._open(
            engine, {**settings(cores), "NUM_STREAMS": min(lanes, cores) or lanes_within(cores)}
        )

    def open_decoding(self, engine: Engine, room: Room, *, threads: int = 0) -> Paged:
        """Compile a decoder's graph and make room for its cache."""
        folder.check(engine, self.target)
        return Paged(engine, room, settings(host.threads_or_all(threads)))

    def layer_times(self, engine: Engine, feeds: Feeds, *, runs: int, threads: int = 0) -> LayerTimes:
        """Run with OpenVINO's counters on: they cost MiniLM 2 % at 1x128."""
        chosen = {**settings(host.threads_or_all(threads)), "PERF_COUNT": True}
        with closing(self._open(engine, chosen)) as session:
            session.run(feeds)
            first = session.counted()
            start = perf_counter()
            for _ in range(runs):
                session.run(feeds)
            call_ms = (perf_counter() - start) * 1e3 / runs
            means = session.counted()
            kernels = session.kernels()
        # What it reports is the mean since the session began, the slow first call in it.
        layers = tuple(
            (name, max(0.0, mean * (runs + 1) - first.get(name, 0)) / runs / 1e3)
            for name, mean in means.items()
        )
        return LayerTimes(layers=layers, call_ms=call_ms, runs=runs, kernels=kernels)

    def _record(self, graph: Graph, plan: Plan, to: Path) -> Engine:
        """Prove that a decoder compiles, and record it: its engine is the graph, compiled when it is opened.

        That takes 1.5 seconds for a SmolLM2-135M. A blob of it cannot be had: OpenVINO 2026.4.1 writes none of what
        attention over pages has to know of its heads, and then refuses to read it.
        """
        [way, *_] = ways(graph.precision, cpu_features())
        layers = layers_of(compiled(graph, way, settings(threads=1)))
        to.mkdir(parents=True)
        engine = Engine(backend=self.name, target=self.target, path=to, graph=graph, plan=plan)
        folder.write(engine)
        write_layers(engine, self.name, _version(), layers)
        return engine

    def _open(self, engine: Engine, chosen: Mapping[str, object]) -> OpenVinoSession:
        folder.check(engine, self.target)
        path = engine.path / FILE
        # Copy-on-write, since OpenVINO takes no read-only memory; nothing writes to it.
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        blob = ov.Tensor(np.frombuffer(mapped, np.uint8), shared_memory=True)

        def load() -> ov.CompiledModel:
            return ov.Core().import_model(blob, DEVICE, dict(chosen))

        try:
            compiled = load()
            check_hint(_hint(compiled))
        except RuntimeError as error:
            raise EngineError(
                f"openvino cannot load {path}: {said(error)}; build the engine again"
            ) from error
        return OpenVinoSession(engine, compiled, load, int(str(chosen["NUM_STREAMS"])))


class OpenVinoSession:
    """A compiled model, an infer request for each lane, and what loads it again from the mapped file of its weights."""

    def __init__(
        self,
        engine: Engine,
        compiled: ov.CompiledModel,
        load: Callable[[], ov.CompiledModel],
        lanes: int = 1,
    ) -> None:
        self.inputs = without_packing(engine.inputs)
        self._packed = is_packed(engine.inputs)
        self.outputs = engine.outputs
        self.lanes = lanes
        self._names = [spec.name for spec in engine.outputs]
        self._profile = engine.plan.profile
        self._compiled: ov.CompiledModel | None = None
        self._requests: list[ov.InferRequest] | None = None
        self._load: Callable[[], ov.CompiledModel] | None = load
        self._begin(compiled)

    def run(self, feeds: Feeds) -> Feeds:
        """Run once; inputs are read in place where they are contiguous, outputs are copies."""
        return self.pick(feeds, self._names)

    def pick(self, feeds: Feeds, names: Collection[str]) -> Feeds:
        """The same, but these outputs alone are copied."""
        requests = self._requests
        if requests is None:
            raise RunError("session is closed")
        sizes = admit(self.inputs, self._profile, feeds)
        if self._packed:
            feeds = {**feeds, **beside(feeds["attention_mask"])}
        request = requests.pop()
        try:
            request.infer(dict(feeds), share_inputs=True, share_outputs=True)
            found = {name: request.get_tensor(name).data for name in names}
            self._refuse_others(found, sizes)
            return {name: array.copy() for name, array in found.items()}
        except RuntimeError as error:
            if self._load is not None:
                # What the call left in its lane would have calls fail that are well.
                self._begin(self._load())
            if OF_SHAPES in str(error):
                raise self._not_taken(sizes) from error
            raise RunError(f"openvino failed: {said(error)}") from error
        finally:
            requests.append(request)

    def _begin(self, compiled: ov.CompiledModel) -> None:
        self._compiled = compiled
        self._requests = [compiled.create_infer_request() for _ in range(self.lanes)]

    def _refuse_others(self, found: Feeds, sizes: Mapping[str, int]) -> None:
        """Sizes that a network does not take need not fail: then the outputs are still those of the call before."""
        for spec in self.outputs:
            known = all(axis in sizes for axis in spec.shape if isinstance(axis, str))
            if spec.name in found and known and found[spec.name].shape != spec.sized(sizes):
                raise self._not_taken(sizes)

    def _not_taken(self, sizes: Mapping[str, int]) -> ShapeError:
        """Each is within its range, and together they do not fit; what does is known of the sizes it was built for."""
        asked = _told(sizes)
        usual = _told({axis: self._profile.axes[axis].opt for axis in sizes if axis in self._profile.axes})
        return ShapeError(
            f"the network does not take {asked}, though each is within its range; expected sizes that fit one another"
            f" as in {usual}"
        )

    def counted(self) -> dict[str, int]:
        """Microseconds of each layer that ran, the mean over all calls so far, where the counters are on."""
        return {info.node_name: info.real_time // timedelta(microseconds=1) for info in self._ran()}

    def kernels(self) -> dict[str, str]:
        """What ran for each layer, where the counters are on."""
        return {info.node_name: info.exec_type for info in self._ran()}

    def _ran(self) -> list[ov.ProfilingInfo]:
        if self._requests is None:
            raise RunError("session is closed")
        ran = ov.ProfilingInfo.Status.EXECUTED
        return [info for info in self._requests[0].get_profiling_info() if info.status == ran]

    def close(self) -> None:
        """Release model and memory."""
        self._requests = self._compiled = self._load = None


def _told(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())


def lanes_within(threads: int) -> int:
    """How many calls at once: each has one thread where there are few, and four where there are many."""
    return min(threads, max(2, threads // 4))


def settings(threads: int) -> dict[str, object]:
    """How every model is compiled and loaded.

    The hint makes OpenVINO obey the graph's own types; left out, it runs fp32 graphs in bf16 where the CPU can.
    """
    return {
        "INFERENCE_PRECISION_HINT": "f32",
        # Left out, CPUs with VNNI round activations to eight bits in front of weights of four.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "CPU_RUNTIME_CACHE_CAPACITY": KERNELS,
        # A pinned thread waits for its core while another process has it, and the rest spin until it comes: on two
        # busy cores that took a fifth more processor time per run.
        "ENABLE_CPU_PINNING": False,
    }


def layers_of(compiled: ov.CompiledModel) -> list[dict[str, Any]]:
    """The executed graph: every layer but the constants, in OpenVINO's words, with where its inputs come from."""
    found = []
    for operation in compiled.get_runtime_model().get_ordered_ops():
        said_of_it = operation.get_rt_info()
        about = {key: said_of_it[key].astype(str) for key in said_of_it}
        if about.get("layerType") == "Const":
            continue
        sources = [each.get_source_output() for each in operation.inputs()]
        found.append(
            {
                "name": operation.get_friendly_name(),
                **about,
                "inputs": [f"{each.get_node().get_friendly_name()}:{each.get_index()}" for each in sources],
                "shapes": [str(each.get_partial_shape()) for each in operation.outputs()],
            }
        )
    return found


def check_hint(reported: str) -> None:
    """Refuse a model that would not obey the graph's own types."""
    if reported != "f32":
        raise EngineError(f"openvino runs with precision hint {reported}, asked for f32")


def _version() -> str:
    return str(ov.__version__.split("-")[0])


def _hint(compiled: ov.CompiledModel) -> str:
    return str(compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())


def _with_rows(profile: Profile) -> Profile:
    """The sizes of a packed graph: at worst each text has a row of its own."""
    batch, length = profile.axes["batch"], profile.axes["length"]
    width = Range(1, NARROW, widest(length.max))
    return Profile({**profile.axes, ROWS: Range(1, 1, batch.max), WIDTH: width})


def _bounds(spec: TensorSpec, profile: Profile) -> ov.PartialShape:
    def bound(dim: Dim) -> ov.Dimension:
        if isinstance(dim, int):
            return ov.Dimension(dim)
        return ov.Dimension(profile.axes[dim].min, profile.axes[dim].max)

    return ov.PartialShape([bound(dim) for dim in spec.shape])
