"""PyTorch and transformers: the reference that other engines are compared with."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers.modeling_utils import load_state_dict
from transformers.utils import logging as progress

from alula.core.errors import EngineError, InputError, RunError
from alula.core.model import ModelSpec
from alula.core.parse import get
from alula.core.profile import Profile, Range, admit
from alula.core.tensor import Feeds
from alula.core.words import choice, refuse_unless_offered
from alula.engines import host
from alula.engines.foreign import said

Tensor = torch.Tensor
Pool = Callable[[Tensor, Tensor], Tensor]
Tail = Callable[[Any, Mapping[str, Tensor]], Tensor]
"""What a model answers, and what it was given, to an embedding."""


class Loader(Protocol):
    """One of the Auto classes of transformers."""

    def from_pretrained(self, root: Path, **options: Any) -> tuple[torch.nn.Module, Mapping[str, Any]]:
        """A model, and which of its weights were missing or of another size."""
        ...


LOADERS: Mapping[str, Loader] = {
    "embeddings": transformers.AutoModel,
    "sequence-classification": transformers.AutoModelForSequenceClassification,
    "reranking": transformers.AutoModelForSequenceClassification,
    "token-classification": transformers.AutoModelForTokenClassification,
    "question-answering": transformers.AutoModelForQuestionAnswering,
    "image-classification": transformers.AutoModelForImageClassification,
    "image-embeddings": transformers.AutoModel,
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ROWS, SIDE = 1024, 1 << 16
INTERPOLATE = "interpolate_pos_encoding"
MAPS = ("resnet", "efficientnet")
"""Families whose states are maps, which they pool themselves."""


def reference(
    checkpoint_root: Path,
    spec: ModelSpec,
    *,
    threads: int = 0,
    dtype: str = "fp32",
    profile: Profile | None = None,
) -> TorchSession:
    """A session that computes the outputs of `spec` with the model classes of transformers.

    `threads` holds for the whole process, as PyTorch keeps one pool. Without a profile every length up to the
    model's own is admitted.
    """
    refuse_unless_offered("torch", dtype)
    loader = LOADERS[choice("task", spec.task, tuple(LOADERS))]
    torch.set_num_threads(host.threads_or_all(threads))
    headless = spec.task == "embeddings" or (spec.task == "image-embeddings" and spec.pooling != "pooler")
    model = load(loader, checkpoint_root, DTYPES[dtype], headless=headless)
    return TorchSession(spec, model, _tail(checkpoint_root, spec), profile or _whole(spec))


class TorchSession:
    """A transformers model in eval mode, and what turns its hidden states into an embedding."""

    def __init__(self, spec: ModelSpec, model: torch.nn.Module, tail: Tail | None, profile: Profile) -> None:
        (part,) = spec.parts
        self._dtype = next(model.parameters()).dtype
        self.inputs = part.inputs
        self.outputs = part.outputs
        self._profile = profile
        self._model: torch.nn.Module | None = model
        self._tail = tail
        self._options = _options(spec, model)

    def run(self, feeds: Feeds) -> Feeds:
        """Run once, without gradients."""
        if self._model is None:
            raise RunError("session is closed")
        admit(self.inputs, self._profile, feeds)
        # Copies: PyTorch warns about memory it may not write to, and refuses negative strides.
        given = {name: self._tensor(torch.from_numpy(array.copy())) for name, array in feeds.items()}
        try:
            with torch.inference_mode():
                answer = self._answer(self._model, given)
        except (RuntimeError, IndexError, ValueError) as error:
            raise RunError(f"torch failed: {said(error)}") from error
        return {spec.name: answer[spec.name].float().numpy() for spec in self.outputs}

    def _tensor(self, given: Tensor) -> Tensor:
        """Pixels in the precision of the weights."""
        return given.to(self._dtype) if given.is_floating_point() else given

    def _answer(self, model: torch.nn.Module, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        answer = model(**given, **self._options)
        if self._tail is None:
            return {spec.name: answer[spec.name] for spec in self.outputs}
        embedding, *tokens = self.outputs
        states = {spec.name: answer.last_hidden_state for spec in tokens}
        return {embedding.name: self._tail(answer, given), **states}

    def close(self) -> None:
        """Release the model."""
        self._model = self._tail = None


def load(
    loader: Loader,
    root: Path,
    dtype: torch.dtype,
    *,
    headless: bool,
    config: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """The model in eval mode; weights that are missing are refused, as transformers would make them up.

    A `config` is taken instead of the folder's.
    """
    try:
        with _no_progress():
            # A mismatch is told below, with the weight's name.
            model, info = loader.from_pretrained(
                root,
                config=config and transformers.AutoConfig.for_model(**config),
                dtype=dtype,
                local_files_only=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, RuntimeError, StrictDataclassError) as error:
        raise EngineError(f"transformers cannot load {root}: {said(error)}") from error
    for key, found, expected in sorted(info["mismatched_keys"])[:1]:
        raise InputError(f"{root}: {key} is {_sizes(found)}, its config.json calls for {_sizes(expected)}")
    # An embedding is pooled from the hidden states, so the model's own pooler is not needed.
    missing = sorted(key for key in info["missing_keys"] if not (headless and key.startswith("pooler.")))
    if missing:
        raise InputError(f"{root} has no weights for {', '.join(missing)}; name the task it was trained for")
    return model.eval()


def _sizes(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a single number"


@contextmanager
def _no_progress() -> Iterator[None]:
    """Keep transformers from drawing its own progress bars: there is one display for long work."""
    shown = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            progress.enable_progress_bar()


def _whole(spec: ModelSpec) -> Profile:
    longest = spec.max_length if spec.reads_text else SIDE
    return Profile(
        {axis: Range(1, 1, ROWS if axis == "batch" else longest) for axis in spec.part("encoder").axes}
    )


def _options(spec: ModelSpec, model: torch.nn.Module) -> Mapping[str, bool]:
    """What a model has to be told to take images of any size."""
    open_sides = not spec.reads_text and spec.part("encoder").axes != ("batch",)
    takes = inspect.signature(model.forward).parameters
    return {INTERPOLATE: True} if open_sides and INTERPOLATE in takes else {}


def _tail(root: Path, spec: ModelSpec) -> Tail | None:
    """What comes behind the model; None where its outputs are those of the task."""
    if spec.task == "image-embeddings":
        return _of_images(spec)
    return _embedding(root, spec) if spec.task == "embeddings" else None


def _embedding(root: Path, spec: ModelSpec) -> Tail:
    """Pooling, the checkpoint's Dense modules, and normalisation, in that order."""
    pool = POOLS[choice("pooling", spec.pooling, tuple(POOLS))]
    layers = _dense_modules(root)

    def tail(answer: Any, given: Mapping[str, Tensor]) -> Tensor:
        # Pooled in fp32, as sums over many tokens lose digits in bf16.
        pooled: Tensor = layers(pool(answer.last_hidden_state.float(), given["attention_mask"]))
        return torch.nn.functional.normalize(pooled, dim=-1) if spec.normalize else pooled

    return tail


def _of_images(spec: ModelSpec) -> Tail:
    """The model's own pooling, or that of the states of its tokens."""
    firsts = 2 if spec.family == "deit" else 1

    def tail(answer: Any, given: Mapping[str, Tensor]) -> Tensor:
        if spec.pooling == "pooler" or spec.family in MAPS:
            own: Tensor = answer.pooler_output.float().flatten(1)
            return own
        states: Tensor = answer.last_hidden_state.float()
        if spec.pooling == "mean":
            return states[:, firsts:].mean(1)
        return states if spec.pooling == "none" else states[:, 0]

    return tail


def _dense_modules(root: Path) -> torch.nn.Sequential:
    """The Dense modules that sentence-transformers lists in modules.json, in order."""
    listing = root / "modules.json"
    if not listing.exists():
        return torch.nn.Sequential()
    modules = json.loads(listing.read_text())
    places = [get(module, str, "path") for module in modules if get(module, str, "type").endswith(".Dense")]
    return torch.nn.Sequential(*(layer for place in places for layer in _dense(root / place))).eval()


def _dense(folder: Path) -> tuple[torch.nn.Module, torch.nn.Module]:
    config = json.loads((folder / "config.json").read_text())
    linear = torch.nn.Linear(
        get(config, int, "in_features"), get(config, int, "out_features"), bias=config.get("bias", True)
    )
    weights = folder / "model.safetensors"
    state = load_state_dict(str(weights if weights.exists() else folder / "pytorch_model.bin"))
    linear.load_state_dict({key.removeprefix("linear."): value.float() for key, value in state.items()})
    return linear, _activation(config.get("activation_function", "torch.nn.modules.activation.Tanh"))


def _activation(path: str) -> torch.nn.Module:
    """The module that a path such as "torch.nn.modules.activation.GELU()" names."""
    name = path.rpartition(".")[2].partition("(")[0]
    kind = getattr(torch.nn, name, None)
    if not path.startswith("torch.nn.") or kind is None:
        raise InputError(f"Dense module has activation {path!r}, expected one of torch.nn")
    made: torch.nn.Module = kind()
    return made


# Each pool takes hidden [batch, length, hidden] and mask [batch, length], and may not depend on where the padding is.


def _weights(mask: Tensor) -> Tensor:
    return mask.unsqueeze(-1).float()


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    kept = _weights(mask)
    return (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)


def _mean_sqrt_len(hidden: Tensor, mask: Tensor) -> Tensor:
    kept = _weights(mask)
    return (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9).sqrt()


def _weighted_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Later tokens count more: the first token 1, the second 2, padding nothing."""
    kept = _weights(mask.cumsum(1) * mask)
    return (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)


def _max(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden.masked_fill(mask.unsqueeze(-1) == 0, -1e9).amax(1)


def _at(hidden: Tensor, index: Tensor) -> Tensor:
    return hidden[torch.arange(len(hidden)), index]


def _first(hidden: Tensor, mask: Tensor) -> Tensor:
    return _at(hidden, mask.argmax(1))


def _last(hidden: Tensor, mask: Tensor) -> Tensor:
    return _at(hidden, mask.shape[1] - 1 - mask.flip(1).argmax(1))


POOLS: Mapping[str, Pool] = {
    "mean": _mean,
    "cls": _first,
    "lasttoken": _last,
    "max": _max,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
}
