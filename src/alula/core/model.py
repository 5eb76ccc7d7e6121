"""What a checkpoint is, before any graph is written from it."""

from __future__ import annotations

from dataclasses import dataclass

from alula.core.errors import InputError
from alula.core.tensor import TensorSpec
from alula.core.words import WRITING_TASKS


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One graph of a model: an encoder has one, an encoder-decoder has two or three."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes that vary from call to call, in the order they appear in: rows first."""
        return tuple(dict.fromkeys(d for spec in self.inputs for d in spec.shape if isinstance(d, str)))


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A checkpoint, its task, and the parts it is written as. No weights, no torch.

    `digest` is the SHA-256 over config, weights and the files that decide pooling; `max_length` counts tokens, special
    ones included, and `vocab_size` bounds ids; both are 0 for models that read images. `pooling` and `normalize` matter
    for embeddings only, `labels` for the classifying tasks; `activation` ("softmax", "sigmoid", "none") turns logits
    into scores. `comes_in` is the precision that a ready-made file computes in itself; it is built as it is, under the
    name fp32, and held to what that precision may cost.

    A model that writes text has its `end_ids`, any of which ends an answer, and where an encoder stands before the
    decoder the `start_id` that answers begin with; -1 says that they go on from the prompt. One that reads images
    beside its prompt has the `image_id` of the tokens that keep their places, -1 where none does; `compat` says whose
    code its graphs follow where there are two. `taught` are the tasks of pages that a small one was trained for; none
    means all that its kind does.
    """

    name: str
    digest: str
    revision: str
    architecture: str
    family: str
    task: str
    parts: tuple[Part, ...]
    max_length: int
    vocab_size: int
    pad_id: int
    pooling: str = ""
    normalize: bool = False
    labels: tuple[str, ...] = ()
    activation: str = "none"
    comes_in: str = "fp32"
    end_ids: tuple[int, ...] = ()
    start_id: int = -1
    image_id: int = -1
    compat: str = ""
    taught: tuple[str, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether it writes text, token by token."""
        return self.task in WRITING_TASKS

    @property
    def reads_text(self) -> bool:
        """Whether the inputs are token ids; otherwise they are pixels."""
        return self.vocab_size > 0

    @property
    def reads_source(self) -> bool:
        """Whether an encoder reads what is asked, so that answers begin with a token of their own."""
        return self.start_id >= 0

    @property
    def sees(self) -> bool:
        """Whether images are read beside a prompt."""
        return self.image_id >= 0

    def part(self, name: str) -> Part:
        """Look a part up by name."""
        for part in self.parts:
            if part.name == name:
                return part
        raise InputError(f"no part {name!r}; {self.task} has {[p.name for p in self.parts]}")
