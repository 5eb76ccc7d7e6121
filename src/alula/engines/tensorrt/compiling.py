"""The process that compiles: it can be stopped at any time, and what it took goes back when it ends.

    python -m alula.engines.tensorrt.compiling FD        a job on standard input, messages on file descriptor FD

Messages are JSON lines: {"note": what is going on}, then {"done": true} or {"error": why not}. When standard input
ends, so does the process: whoever asked is gone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from alula.core.errors import AlulaError, CompileError
from alula.core.progress import Note
from alula.engines.tensorrt.job import Job
from alula.engines.tensorrt.refusals import NO_REASON, Fault, refusal
from alula.engines.tensorrt.vendor import Library, load

_FLOATS = ("FLOAT", "HALF")
# Layers that compute nothing in floats, or whose types are part of what they are.
_TYPELESS = frozenset(
    {"CONSTANT", "SHAPE", "CAST", "QUANTIZE", "DEQUANTIZE", "PLUGIN_V2", "PLUGIN", "CONDITION", "ASSERTION"}
)
# Layers that say themselves what they give.
_TYPED = frozenset({"CONSTANT", "CAST", "DEQUANTIZE", "IDENTITY"})
# What makes one region of a network, which is compiled as a whole.
_REGION = frozenset({"SOFTMAX", "NORMALIZATION"})
_ITSELF = 1 << 20


def compile_here(job: Job, say: Note) -> None:
    """Write the engine of a job, and what its layers are, or raise a CompileError that says why not."""
    lib = load(job.target)
    heard = listener(lib)
    builder = lib.module.Builder(heard)
    if builder is None:
        raise CompileError(refusal(job.graph, (), heard.errors, name_of(lib)))
    say("reads the graph")
    network = builder.create_network(network_flags(lib))
    parse(lib, network, heard, job)
    decompose_in_full_precision(lib, network)
    config = configure(lib, builder, network, job, say)
    cache = timing_cache(lib, config, job.timing_cache)
    say(f"{network.num_layers} layers to compile")
    try:
        made = builder.build_serialized_network(network, config)
    except RuntimeError as error:
        raise CompileError(refusal(job.graph, (), [*heard.errors, str(error)], name_of(lib))) from error
    if made is None:
        raise CompileError(refusal(job.graph, (), heard.errors, name_of(lib)))
    say("writes the engine")
    Path(job.engine).write_bytes(memoryview(made))
    if cache is not None and job.timing_cache is not None:
        keep(Path(job.timing_cache), memoryview(cache.serialize()))
    describe(lib, heard, job, memoryview(made))


def name_of(lib: Library) -> str:
    """Such as "tensorrt 8.6.0"."""
    return f"{lib.target} {lib.version}"


def listener(lib: Library) -> Any:
    """A logger that keeps errors and warnings, up to a bound."""
    trt = lib.module

    class Listener(trt.ILogger):  # type: ignore[misc,name-defined] # the module is known when it is loaded
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []
            self.warnings: list[str] = []

        def log(self, severity: object, message: str) -> None:
            kept = self.errors if severity in {trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR} else None
            if severity == trt.ILogger.WARNING:
                kept = self.warnings
            if kept is not None and len(kept) < 100:
                kept.append(message)

    return Listener()


def network_flags(lib: Library) -> int:
    """The bits that this version needs for a batch that is an axis like others, and for types that are obeyed."""
    flags = lib.module.NetworkDefinitionCreationFlag
    bits = 0
    if lib.features.batch_flag:
        bits |= 1 << int(flags.EXPLICIT_BATCH)
    if lib.features.typed == "flag":
        bits |= 1 << int(flags.STRONGLY_TYPED)
    return bits


def parse(lib: Library, network: Any, heard: Any, job: Job) -> None:
    """Read the file from its own place, since weights may lie beside it."""
    parser = lib.module.OnnxParser(network, heard)
    if not parser.parse_from_file(job.graph):
        faults = [fault_of(parser.get_error(at)) for at in range(parser.num_errors)]
        raise CompileError(refusal(job.graph, faults, heard.errors, name_of(lib)))


def fault_of(error: Any) -> Fault:
    """A parser's error as a value; older ones have neither the node's name nor its operator."""

    def said(name: str) -> str:
        given = getattr(error, name, "")
        return str(given() if callable(given) else given)

    return Fault(text=said("desc"), node=said("node_name"), kind=said("node_operator"))


def decompose_in_full_precision(lib: Library, network: Any) -> None:
    """Let attention in fp32 be compiled in parts: no kernel has it whole, and half precision is to have one."""
    kind = getattr(lib.module.LayerType, "ATTENTION_INPUT", None)
    if kind is None:
        return
    for at in range(network.num_layers):
        layer = network.get_layer(at)
        if layer.type == kind and layer.get_input(0).dtype == lib.module.DataType.FLOAT:
            layer.__class__ = lib.module.IAttentionInputLayer
            layer.attention.decomposable = True


def configure(lib: Library, builder: Any, network: Any, job: Job, say: Note) -> Any:
    """Everything a plan says, in the terms of this version."""
    trt, config = lib.module, builder.create_builder_config()
    for shapes in job.profiles:
        profile = builder.create_optimization_profile()
        for name, (low, opt, high) in shapes.items():
            profile.set_shape(name, low, opt, high)
        if config.add_optimization_profile(profile) < 0:
            raise CompileError(f"{name_of(lib)} refuses the profile {dict(shapes)}")
    # Left on, fp32 products are rounded to 10 bits.
    config.clear_flag(trt.BuilderFlag.TF32)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if job.level is not None:
        config.builder_optimization_level = job.level
    if job.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, job.workspace_bytes)
    if job.portable and not lib.features.portable_always:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
        config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
    if job.strip_weights:
        config.set_flag(trt.BuilderFlag.STRIP_PLAN)
    if lib.features.typed == "layers":
        obey_types(trt, network, config)
    if lib.features.batch_flag:
        # Its own kernels only, as later versions have it: cuBLAS and cuDNN take hundreds of MiB and a second to load.
        own = (trt.TacticSource.EDGE_MASK_CONVOLUTIONS, trt.TacticSource.JIT_CONVOLUTIONS)
        config.set_tactic_sources(sum(1 << int(source) for source in own))
        # Requests in flight share a profile, which 8.6 forbids and later versions do not.
        if hasattr(trt.PreviewFeature, "PROFILE_SHARING_0806"):
            config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)
    if lib.features.monitor:
        config.progress_monitor = monitor(trt, say)
    return config


def obey_types(trt: Any, network: Any, config: Any) -> None:
    """Make a network without types of its own compute as the graph says, as far as 8.6 can be told.

    Measured with 8.6.0 on an H200: convolutional networks obey layer by layer. A transformer becomes one region, for
    which it finds no implementation if it is to obey (BERT-base; with the fp32 layers alone held, all of it runs in
    fp32), and layers behind DequantizeLinear choose int8 only if they are free. So these get the permission for fp16
    or int8, and what comes of it is for the comparison with the reference to judge.
    """
    layers = [network.get_layer(at) for at in range(network.num_layers)]
    kinds = {layer.type.name for layer in layers}
    quantised = not kinds.isdisjoint({"QUANTIZE", "DEQUANTIZE"})
    types = types_of(trt, layers)
    if quantised:
        config.set_flag(trt.BuilderFlag.INT8)
    if trt.DataType.HALF in types.values():
        config.set_flag(trt.BuilderFlag.FP16)
        if not quantised and kinds.isdisjoint(_REGION):
            hold(config, trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS, layers, types)


def hold(config: Any, flag: Any, layers: Sequence[Any], types: Mapping[str, Any]) -> None:
    """Hold every layer that computes in floats to the type of what it gives."""
    config.set_flag(flag)
    for layer in layers:
        if layer.type.name in _TYPELESS or not layer.num_outputs:
            continue
        output = layer.get_output(0)
        kind = types.get(output.name)
        if kind is None or output.is_shape_tensor or kind.name not in _FLOATS:
            continue
        layer.precision = kind
        for at in range(layer.num_outputs):
            layer.set_output_type(at, kind)


def types_of(trt: Any, layers: Sequence[Any]) -> dict[str, Any]:
    """The type of every tensor by its name, as the graph has it.

    A parser of 8.6 knows the types of constants and casts only, and calls everything else float until it is built.
    """
    types: dict[str, Any] = {}
    for layer in layers:
        inputs = [layer.get_input(at) for at in range(layer.num_inputs)]
        known = [types.get(each.name, each.dtype) for each in inputs if each is not None]
        floats = [each for each in known if each.name in _FLOATS]
        for at in range(layer.num_outputs):
            output = layer.get_output(at)
            own = declared(trt, layer) or output.dtype
            if layer.type.name in _TYPED or own.name not in _FLOATS or not floats:
                types[output.name] = own
            else:
                types[output.name] = floats[0]
    return types


def declared(trt: Any, layer: Any) -> Any:
    """The type that a cast or a constant was made with, which 8.6 does not show on what it gives."""
    if layer.type.name == "CAST":
        layer.__class__ = trt.ICastLayer
        return layer.to_type
    if layer.type.name == "CONSTANT":
        layer.__class__ = trt.IConstantLayer
        return trt.DataType.HALF if getattr(layer.weights, "dtype", None) == np.float16 else None
    return None


def timing_cache(lib: Library, config: Any, path: str | None) -> Any | None:
    """What was timed on this device and version before; builds after the first are quicker."""
    if path is None or not lib.features.timing_cache:
        return None
    file = Path(path)
    known = file.read_bytes() if file.is_file() else b""
    cache = config.create_timing_cache(known)
    if cache is None:
        cache = config.create_timing_cache(b"")
    config.set_timing_cache(cache, ignore_mismatch=False)
    return cache


def keep(file: Path, content: memoryview) -> None:
    """Replace the timing cache at once or not at all."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_name(f".{file.name}.{os.getpid()}")
        aside.write_bytes(content)
        aside.replace(file)
    except OSError:
        # The engine is whole; the next build takes longer.
        return


def monitor(trt: Any, say: Note) -> Any:
    """Tells which phase runs, how many of its steps are done, and how long the rest may take."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc] # the module is known when it is loaded
        def __init__(self) -> None:
            super().__init__()
            self.phases: dict[str, tuple[int, float]] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.phases[phase_name] = (num_steps, perf_counter())

        def step_complete(self, phase_name: str, step: int) -> bool:
            steps, start = self.phases.get(phase_name, (0, perf_counter()))
            say(progress(phase_name, step + 1, steps, perf_counter() - start))
            return True

        def phase_finish(self, phase_name: str) -> None:
            self.phases.pop(phase_name, None)

    return Monitor()


def progress(phase: str, done: int, steps: int, seconds: float) -> str:
    """Such as "Tactic Selection: 20 of 80, 3 s left". Pure."""
    left = seconds / done * (steps - done) if done else 0.0
    return f"{phase}: {done} of {steps}" + (f", {left:.0f} s left" if left >= 1 else "")


def describe(lib: Library, heard: Any, job: Job, engine: memoryview) -> None:
    """Write down the layers that run, where the engine can be loaded: the inspector reads loaded engines."""
    runtime = lib.module.Runtime(heard) if not lib.features.cpu_compiles or has_gpu() else None
    loaded = runtime.deserialize_cuda_engine(engine) if runtime is not None else None
    if loaded is None:
        return
    inspector = loaded.create_engine_inspector()
    text = inspector.get_engine_information(lib.module.LayerInformationFormat.JSON)
    try:
        # Names may hold raw control characters.
        layers = json.loads(text, strict=False)
    except ValueError:
        return
    document = {"source": lib.target, "version": lib.version, "layers": layers}
    Path(job.layers).write_text(json.dumps(document))


def has_gpu() -> bool:
    """Whether there is a GPU to load an engine on."""
    from alula.engines.cuda import devices  # noqa: PLC0415 - loads the vendor

    return bool(devices())


def main(args: Sequence[str]) -> int:
    """Do one job; the code is 0 or 1, the reason is a message."""
    messages = os.fdopen(int(args[0]), "w", encoding="utf-8", buffering=1)

    def tell(**message: Any) -> None:
        messages.write(json.dumps(message) + "\n")

    job = Job.parse(sys.stdin.buffer.readline().decode())
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    try:
        compile_here(job, lambda note: tell(note=note))
    except AlulaError as error:
        tell(error=str(error))
        return 1
    except Exception as error:
        tell(error=f"{job.target}: {type(error).__name__}: {str(error) or NO_REASON}")
        return 1
    tell(done=True)
    return 0


def _end_with_the_caller() -> None:
    while os.read(sys.stdin.fileno(), _ITSELF):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
