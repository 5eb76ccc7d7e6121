"""Whatever has no module of its own: PyTorch traces the transformers model, the outputs are written as ever."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import onnx_ir as ir
from onnx_ir.passes import Sequential
from onnx_ir.passes.common import (
    ClearMetadataAndDocStringPass,
    DeduplicateInitializersPass,
    IdentityEliminationPass,
    LiftConstantsToInitializersPass,
    RemoveUnusedFunctionsPass,
    RemoveUnusedNodesPass,
    RemoveUnusedOpsetsPass,
)

from alula.core.errors import CompileError, InputError, MissingExtraError
from alula.core.model import ModelSpec, Part
from alula.families import pooling
from alula.families.builder import Builder, declare
from alula.families.checkpoint import Checkpoint, first_line
from alula.families.sentence import read_embedding

try:
    import torch
    import transformers
    from huggingface_hub.errors import StrictDataclassError
except ImportError as error:
    raise MissingExtraError("tracing a model that has no module here", "torch") from error

# Sizes that are neither 1 nor each other: tracing takes those two for facts about the model.
_BATCH, _LENGTH = 2, 7
_STATES = "states"

_LOADERS: Mapping[str, type] = {
    "embeddings": transformers.AutoModel,
    "sequence-classification": transformers.AutoModelForSequenceClassification,
    "reranking": transformers.AutoModelForSequenceClassification,
    "token-classification": transformers.AutoModelForTokenClassification,
    "question-answering": transformers.AutoModelForQuestionAnswering,
}


def write(checkpoint: Checkpoint, spec: ModelSpec, part_name: str, opset: int) -> ir.Model:
    """Trace one part in memory; the weights stay PyTorch's until the model is saved."""
    part = spec.part(part_name)
    wanted = (_STATES,) if spec.task == "embeddings" else tuple(output.name for output in part.outputs)
    model = _trace(_Answer(_load(checkpoint, spec.task), wanted), part, wanted, opset)
    _tidy(model)
    if spec.task == "embeddings":
        _pool(model, checkpoint, spec)
    _declare(model, part)
    return model


class _Answer(torch.nn.Module):
    """A transformers model that takes our inputs and gives our outputs, in order."""

    def __init__(self, model: torch.nn.Module, wanted: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.wanted = wanted

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Run the model and pick."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            given["token_type_ids"] = token_type_ids
        answer = self.model(**given, return_dict=True)
        return tuple(answer["last_hidden_state" if name == _STATES else name] for name in self.wanted)


def _load(checkpoint: Checkpoint, task: str) -> torch.nn.Module:
    """The fp32 model; weights that are missing are refused, as transformers would make them up."""
    try:
        with _quiet():
            model, info = _LOADERS[task].from_pretrained(  # type: ignore[attr-defined] # transformers has no types
                checkpoint.root, dtype=torch.float32, local_files_only=True, output_loading_info=True
            )
    except (OSError, ValueError, RuntimeError, KeyError, StrictDataclassError) as error:
        raise InputError(f"transformers cannot load {checkpoint.root}: {first_line(error)}") from error
    missing = [
        key for key in info["missing_keys"] if not (task == "embeddings" and key.startswith("pooler."))
    ]
    if missing:
        raise InputError(
            f"{checkpoint.name} has no weights for {', '.join(sorted(missing))}, which {task} needs"
        )
    loaded: torch.nn.Module = model.eval()
    return loaded


def _trace(model: torch.nn.Module, part: Part, wanted: tuple[str, ...], opset: int) -> ir.Model:
    example = {spec.name: torch.ones(_BATCH, _LENGTH, dtype=torch.int64) for spec in part.inputs}
    axes = {spec.name: dict(enumerate(spec.shape)) for spec in part.inputs}
    try:
        with _quiet():
            program = torch.onnx.export(
                model,
                kwargs=example,
                dynamo=True,
                dynamic_shapes=axes,
                input_names=list(example),
                output_names=list(wanted),
                opset_version=opset,
                verbose=False,
            )
    except (torch.onnx.OnnxExporterError, RuntimeError, ValueError) as error:
        # What the exporter says is pages of advice; the cause says what is wrong with the model.
        why = first_line(error.__cause__ or error)
        raise CompileError(f"PyTorch cannot trace {type(model).__name__}: {why}") from error
    assert program is not None
    traced: ir.Model = program.model
    if (found := traced.opset_imports[""]) != opset:
        raise CompileError(f"asked PyTorch for opset {opset}, got {found}")
    return traced


def _tidy(model: ir.Model) -> None:
    """One copy of each constant, nothing unused, and no stack traces of this machine."""
    Sequential(
        RemoveUnusedNodesPass(),
        RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call] # onnx-ir's own omission
        RemoveUnusedOpsetsPass(),
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        DeduplicateInitializersPass(),
        IdentityEliminationPass(),
        ClearMetadataAndDocStringPass(),
    )(model)
    _share_tied(model.graph)
    model.producer_name, model.producer_version = "alula", None
    model.graph.name = "encoder"


def _share_tied(graph: ir.Graph) -> None:
    """Keep one of the weights that are the same memory."""
    kept: dict[tuple[int, tuple[int, ...], tuple[int, ...]], ir.Value] = {}
    for name, value in list(graph.initializers.items()):
        raw = getattr(value.const_value, "raw", None)
        if isinstance(raw, torch.Tensor) and raw.numel():
            first = kept.setdefault((raw.data_ptr(), tuple(raw.shape), raw.stride()), value)
            if first is not value:
                value.replace_all_uses_with(first)
                graph.initializers.pop(name)


def _pool(model: ir.Model, checkpoint: Checkpoint, spec: ModelSpec) -> None:
    """Put pooling, Dense modules and normalisation behind the traced states."""
    graph = model.graph
    states, mask = graph.outputs[0], next(v for v in graph.inputs if v.name == "attention_mask")
    b = Builder({}, "")
    x = pooling.pool(b, states, mask, spec.pooling)
    for module in read_embedding(checkpoint).dense:
        x = pooling.dense(b, x, module)
    graph.outputs[0] = pooling.normalize(b, x) if spec.normalize else x
    if len(spec.parts[0].outputs) > 1:
        graph.outputs.append(states)
    b.extend(graph)


def _declare(model: ir.Model, part: Part) -> None:
    """Give inputs and outputs the names of the part, which nothing inside may have."""
    taken = {spec.name for spec in part.outputs} - {value.name for value in model.graph.outputs}
    for node in model.graph:
        for value in node.outputs:
            if value.name in taken:
                value.name = f"{value.name}_traced"
    declare(model.graph, part)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep progress bars and the exporter's remarks about itself out of the caller's output."""
    chatty = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "torch.export")]
    levels = [logger.level for logger in chatty]
    for logger in chatty:
        logger.setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.utils.logging.enable_progress_bar()
        for logger, level in zip(chatty, levels, strict=True):
            logger.setLevel(level)
