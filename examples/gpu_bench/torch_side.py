"""The worker that runs a checkpoint in PyTorch, in one form and precision.

python -m gpu_bench.torch_side FOLDER FORM PRECISION DEVICE      DEVICE is cuda, or cpu in a dry run
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from alula import families
from alula.core.errors import InputError, RunError
from alula.core.model import ModelSpec
from alula.core.tensor import Array, Feeds
from gpu_bench.drawn import store, stored
from gpu_bench.turns import Calls, one_by_one, turn
from gpu_bench.wire import Handler, serve

Tensors = dict[str, torch.Tensor]
Model = Callable[..., torch.Tensor]

_SHAPES = 64
"""Shapes that one compiled model may be compiled for; the usual limit is eight."""


class Pooled(torch.nn.Module):
    """A text encoder with the mean over its tokens, as sentence-transformers computes it."""

    def __init__(self, model: torch.nn.Module, *, normalize: bool) -> None:
        super().__init__()
        self.model, self.normalize = model, normalize

    def forward(self, **given: torch.Tensor) -> torch.Tensor:
        """Embeddings."""
        states = self.model(**given).last_hidden_state
        mask = given["attention_mask"].unsqueeze(-1).to(states.dtype)
        mean: torch.Tensor = (states * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=-1) if self.normalize else mean


class Logits(torch.nn.Module):
    """A classifier's logits."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **given: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.model(**given).logits
        return logits


class First(torch.nn.Module):
    """An image encoder's first token behind its last norm."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **given: torch.Tensor) -> torch.Tensor:
        """Embeddings."""
        states: torch.Tensor = self.model(**given).last_hidden_state
        return states[:, 0]


def loaded(folder: Path, spec: ModelSpec) -> torch.nn.Module:
    """The model of transformers in fp32, with the outputs that the engine has."""
    if spec.task == "image-embeddings":
        if spec.pooling != "cls":
            raise InputError(f"{folder} pools by {spec.pooling}; the first token is what is compared here")
        return First(
            transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        ).eval()
    if not spec.reads_text:
        kind = transformers.AutoModelForImageClassification
        return Logits(kind.from_pretrained(folder, dtype=torch.float32, local_files_only=True)).eval()
    if spec.pooling != "mean":
        raise InputError(f"{folder} pools by {spec.pooling}; the mean is what is compared here")
    # Without BERT's own pooler, whose answer nobody asks for.
    model = transformers.AutoModel.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, add_pooling_layer=False
    )
    return Pooled(model, normalize=spec.normalize).eval()


class Captured:
    """One shape of a compiled model as a CUDA graph with inputs and outputs of its own."""

    def __init__(self, model: Model, given: Tensors) -> None:
        self.inputs = {name: tensor.clone() for name, tensor in given.items()}
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call] # ships no types here
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(**self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = model(**self.inputs)

    @torch.inference_mode()
    def fill(self, given: Tensors) -> None:
        """Copy into its inputs, which takes floats of another precision too."""
        for name, tensor in given.items():
            self.inputs[name].copy_(tensor, non_blocking=True)

    def __call__(self, **given: torch.Tensor) -> torch.Tensor:
        """Copy, replay."""
        self.fill(given)
        self.graph.replay()
        return self.output


class TorchSide:
    """What the worker is asked, one method each."""

    def __init__(self, folder: Path, form: str, precision: str, device: str) -> None:
        # fp32 means fp32 on every side: left on, products and convolutions are rounded to ten bits.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        if form != "eager":
            torch._dynamo.config.recompile_limit = _SHAPES
        if device == "cpu":
            torch.set_num_threads(1)
        self._folder, self._form, self._device = folder, form, device
        self._half = precision == "fp16"
        self._spec = families.describe(families.open_checkpoint(str(folder)))
        self._model: torch.nn.Module | None = None
        self._run: Model | None = None
        self._captured: dict[tuple[tuple[int, ...], ...], Captured] = {}
        self._feeds: dict[str, list[Feeds]] = {}
        self._resident: dict[str, list[Tensors]] = {}

    def facts(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """What this process is."""
        return {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
            "cuda": torch.version.cuda,
            "ways": ("host", "device"),
        }

    def open(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Context, model, first answer; then the largest shape, and what the device has less."""
        first, largest = (stored(Path(message[key]))[0] for key in ("first", "largest"))
        begun = perf_counter()
        if self._device == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call] # likewise
            torch.cuda.synchronize()
        context_at = perf_counter()
        free = self._free_bytes()
        loading_at = perf_counter()
        model = loaded(self._folder, self._spec).to(self._device)
        self._model = model.half() if self._half else model
        self._run = self._formed(self._model)
        self._synchronize()
        loaded_at = perf_counter()
        self._answered(first)
        answered_at = perf_counter()
        for _ in range(3):
            self._answered(largest)
        return {
            "context_ms": 1e3 * (context_at - begun),
            "load_ms": 1e3 * (loaded_at - loading_at),
            "first_ms": 1e3 * (answered_at - begun),
            "memory_bytes": free - self._free_bytes(),
        }

    def warm(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Run a shape often enough to be compiled, recorded and replayed; eager PyTorch counts its operations."""
        feeds = self._of(message)[0]
        for _ in range(3):
            self._answered(feeds)
        return {"operations": self._operations(feeds)} if self._form == "eager" and not self._half else {}

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the calls of a file into another."""
        name = self._spec.part("encoder").outputs[0].name
        store(Path(message["to"]), [{name: self._answered(f)} for f in stored(Path(message["feeds"]))])
        return {}

    def time(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """One turn."""
        ms, runs = turn(self._calls(message), float(message["ms"]))
        return {"ms": ms, "runs": runs}

    def handlers(self) -> dict[str, Handler]:
        """By the word that asks for it."""
        return {
            "facts": self.facts,
            "open": self.open,
            "warm": self.warm,
            "answer": self.answer,
            "time": self.time,
            "stats": lambda message: {},
        }

    def _formed(self, model: torch.nn.Module) -> Model:
        if self._form == "eager":
            return model
        if self._device == "cpu":
            # A dry run has no compiler for kernels; the tracing before it is the same.
            traced: Model = torch.compile(model, dynamic=False, backend="eager")
            return traced
        mode = "reduce-overhead" if self._form == "compiled" else None
        compiled: Model = torch.compile(model, dynamic=False, mode=mode)
        return compiled if self._form == "compiled" else self._replayed(compiled)

    def _replayed(self, compiled: Model) -> Model:
        def run(**given: torch.Tensor) -> torch.Tensor:
            return self._graph_of(compiled, given)(**given)

        return run

    def _graph_of(self, compiled: Model, given: Tensors) -> Captured:
        key = tuple(tuple(tensor.shape) for tensor in given.values())
        if key not in self._captured:
            self._captured[key] = Captured(compiled, given)
        return self._captured[key]

    def _calls(self, message: Mapping[str, Any]) -> Calls:
        feeds = self._of(message)
        if message["way"] == "host":
            return one_by_one(lambda at: self._answered(feeds[at]), len(feeds))
        resident, run = self._on_device(str(message["feeds"]), feeds), self._runs()

        def call(at: int) -> None:
            with torch.inference_mode():
                self._step()
                run(**resident[at])
            self._synchronize()

        if not self._captured:
            return one_by_one(call, len(feeds))
        graph = self._captured[tuple(tuple(tensor.shape) for tensor in resident[0].values())]

        def replay(at: int) -> None:
            graph.graph.replay()
            self._synchronize()

        def arrange(at: int) -> None:
            graph.fill(resident[at])
            self._synchronize()

        return one_by_one(replay, len(feeds), arrange)

    def _answered(self, feeds: Feeds) -> Array:
        """Arrays in, an array out, as a caller of PyTorch has it."""
        with torch.inference_mode():
            self._step()
            answer = self._runs()(**{name: self._moved(array) for name, array in feeds.items()})
            array: Array = answer.float().cpu().numpy()
            return array

    def _moved(self, array: Array) -> torch.Tensor:
        tensor = torch.from_numpy(array).to(self._device)
        return tensor.half() if self._half and tensor.is_floating_point() else tensor

    def _on_device(self, key: str, feeds: Sequence[Feeds]) -> list[Tensors]:
        if key not in self._resident:
            moved = [{name: self._moved(array) for name, array in call.items()} for call in feeds]
            self._resident = {key: moved}
        return self._resident[key]

    def _step(self) -> None:
        if self._form == "compiled" and self._device == "cuda":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call] # likewise

    def _operations(self, feeds: Feeds) -> int | None:
        """Multiplications and additions of one call, attention written out so that all of it is counted."""
        try:
            with (
                torch.inference_mode(),
                sdpa_kernel(SDPBackend.MATH),
                FlopCounterMode(display=False) as counter,
            ):
                self._runs()(**{name: self._moved(array) for name, array in feeds.items()})
        except RuntimeError:
            return None
        return int(counter.get_total_flops())

    def _free_bytes(self) -> int:
        if self._device == "cuda":
            return int(torch.cuda.mem_get_info()[0])
        return -int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def _synchronize(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()

    def _of(self, message: Mapping[str, Any]) -> list[Feeds]:
        """The inputs of a shape that take turns; those of the shape before are let go."""
        key = str(message["feeds"])
        if key not in self._feeds:
            self._feeds = {key: stored(Path(key))[: int(message["sets"])]}
        return self._feeds[key]

    def _runs(self) -> Model:
        if self._run is None:
            raise RunError("nothing is open")
        return self._run


def main(args: Sequence[str]) -> int:
    """Serve one model."""
    folder, form, precision, device = args
    return serve(lambda: TorchSide(Path(folder), form, precision, device).handlers())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
