"""Which checkpoints write text, what they are written as, and how those that are not are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_decoders
import tiny_gguf
import tiny_t5

from alula import families
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import Range
from alula.core.words import WRITING_TASKS


def described(folder: Path, **asked: Any) -> ModelSpec:
    return families.describe(families.open_checkpoint(str(folder)), **asked)


def settle(path: Path, **changes: object) -> None:
    """Change keys of a JSON file, or leave them out where they are None."""
    kept = json.loads(path.read_text()) if path.is_file() else {}
    kept.update(changes)
    path.write_text(json.dumps({key: value for key, value in kept.items() if value is not None}))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoders") / "llama"
    tiny_decoders.checkpoint(folder, "llama", eos_token_id=[3, 5], pad_token_id=7)
    return folder


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_t5.checkpoint(tmp_path_factory.mktemp("t5") / "t5")


def copy(folder: Path, to: Path) -> Path:
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_a_decoder_is_one_part_that_ends_by_any_of_its_end_tokens(llama: Path) -> None:
    spec = described(llama)
    assert (spec.task, spec.family, spec.writes, spec.reads_text) == ("text-generation", "llama", True, True)
    assert [part.name for part in spec.parts] == ["decoder"]
    assert spec.part("decoder").axes == ("batch", "length", "total", "answers", "past")
    assert (spec.end_ids, spec.start_id, spec.pad_id) == ((3, 5), -1, 7)
    assert (spec.max_length, spec.vocab_size) == (64, 61)


def test_what_generation_config_says_goes_before_config(llama: Path, tmp_path: Path) -> None:
    folder = copy(llama, tmp_path / "other")
    before = described(folder).digest
    settle(folder / "generation_config.json", eos_token_id=[9, 9, 2], pad_token_id=-1)
    spec = described(folder)
    assert (spec.end_ids, spec.pad_id) == ((9, 2), 9)
    assert spec.digest != before
    settle(folder / "generation_config.json", eos_token_id=61)
    with pytest.raises(InputError, match="eos_token_id is 61, expected ids of tokens up to 60"):
        described(folder)


def test_a_t5_is_three_parts_that_answer_from_their_start_token(t5: Path, tmp_path: Path) -> None:
    spec = described(t5)
    assert (spec.task, spec.family) == ("text2text-generation", "t5")
    assert [part.name for part in spec.parts] == ["encoder", "cross", "decoder"]
    assert (spec.start_id, spec.pad_id, spec.end_ids, spec.max_length) == (0, 0, (1,), 512)
    asked = {"source": Range(1, 128, 2048)}
    assert described(t5, asked=asked).max_length == 2048
    folder = copy(t5, tmp_path / "other")
    settle(folder / "config.json", decoder_start_token_id=4)
    assert described(folder).start_id == 4


def test_a_gguf_file_is_a_model_of_its_own(tmp_path: Path) -> None:
    wide = {"llama.embedding_length": 16, "llama.feed_forward_length": 24, "llama.context_length": 32}
    settings = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.attention.head_count": 2,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 6,
        **wide,
    }
    table = tiny_gguf.floats(np.zeros((11, 16), np.float32))
    file = tiny_gguf.written(
        tmp_path / "tiny.Q4.gguf", tiny_gguf.gguf(settings, {"token_embd.weight": table})
    )
    spec = described(file)
    assert (spec.name, spec.revision, spec.task) == ("tiny.Q4", "local", "text-generation")
    assert (spec.end_ids, spec.max_length, spec.vocab_size) == ((2, 6), 32, 11)
    with pytest.raises(InputError, match="task 'embeddings' is not one of: text-generation"):
        described(file, task="embeddings")
    with pytest.raises(InputError, match=r"no file .*nowhere\.gguf"):
        families.open_checkpoint(str(tmp_path / "nowhere.gguf"))


@pytest.mark.parametrize(
    ("config", "asked", "said"),
    [
        (
            {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
            {},
            r"GPT2LMHeadModel \(model type 'gpt2'\) is not among the models that write text .*: llama, mistral",
        ),
        ({}, {"task": "text2text-generation"}, "'text2text-generation' is not for LlamaForCausalLM"),
        ({}, {"pooling": "mean"}, "pooling 'mean' is for embeddings; the task is text-generation"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            {"task": "text-generation"},
            "LlamaForSequenceClassification has no head that writes text",
        ),
        ({"eos_token_id": "</s>"}, {}, "eos_token_id is '</s>', expected ids of tokens up to 60"),
    ],
)
def test_what_is_not_written_is_refused_by_name(
    llama: Path, tmp_path: Path, config: dict[str, Any], asked: dict[str, Any], said: str
) -> None:
    folder = copy(llama, tmp_path / "other")
    (folder / "generation_config.json").unlink(missing_ok=True)
    settle(folder / "config.json", **config)
    with pytest.raises(InputError, match=said):
        described(folder, **asked)


def test_a_sentence_encoder_of_such_a_class_stays_one(llama: Path, tmp_path: Path) -> None:
    folder = copy(llama, tmp_path / "other")
    checkpoint = families.open_checkpoint(str(folder))
    assert families.describe(checkpoint).task in WRITING_TASKS
    kind = "sentence_transformers.models"
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"{kind}.{name}"}
        for at, (path, name) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling")))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    settle(folder / "1_Pooling" / "config.json", pooling_mode_lasttoken=True, pooling_mode_mean_tokens=False)
    assert described(folder).task == "embeddings"
