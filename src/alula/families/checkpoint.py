"""A checkpoint in the HuggingFace layout, a local folder or one fetched from the hub; or an ONNX or a GGUF file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from alula.core.errors import InputError, MissingExtraError
from alula.families import onnx_file
from alula.families.shipped import SHIPPED, shipped
from alula.families.weights import INDEX, SINGLE, read_header, weight_files

TOKENIZER = "tokenizer.json"
PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"
"""What newer versions of transformers save in its place."""
GGUF = ".gguf"

# What `describe` and `write` read besides weights, and so what the digest covers.
_SETTINGS = (
    "config.json",
    PREPROCESSOR,
    PROCESSOR,
    "generation_config.json",
    "modules.json",
    "config_sentence_transformers.json",
    "tokenizer_config.json",
    "sentence_*_config.json",
)
_FETCHED = (
    *("*.json", "*.txt", "*.jinja"),
    *("model.safetensors", "model-*-of-*.safetensors", "*_Dense/model.safetensors"),
)
_NOT_FETCHED = ("onnx/*", "openvino/*", "checkpoint-*")
_BLOCK = 1 << 20
_HUB_ANSWERS_WITHIN_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A folder of weights and settings, or a single file; `digest` depends on the content, not on the place."""

    root: Path
    name: str
    revision: str
    config: Mapping[str, Any]
    digest: str

    @property
    def folder(self) -> Path:
        """Where files that belong to the model lie."""
        return self.root.parent if self.root.is_file() else self.root


def open_checkpoint(model: str, revision: str = "main") -> Checkpoint:
    """Find a checkpoint by folder or hub id, and check that its files are whole."""
    root = locate(model, revision)
    if _is_folder(model):
        name = _shown(root.resolve().name)
        file = onnx_file.only_file(root)
        return _read(root, name, "local") if file is None else _from_file(file, name)
    if root.suffix == GGUF:
        return _from_gguf(root)
    if root.is_file():
        return _from_file(root, _shown(root.stem))
    if model in SHIPPED:
        return _read(root, model, "local")
    # The hub's cache names a snapshot by its commit.
    return _read(root, model, root.name)


def locate(model: str, revision: str = "main") -> Path:
    """The folder of a checkpoint that is there, ships or is fetched by its hub id, or an ONNX or GGUF file; unread."""
    if not model.strip():
        raise InputError("the model's name is empty; expected a folder or a hub id")
    folder = Path(model).expanduser().absolute()
    is_file = folder.is_file() and folder.suffix in {onnx_file.ENDING, GGUF}
    if is_file or _is_folder(model):
        if revision != "main":
            raise InputError(
                f"{model} is a local {'file' if is_file else 'folder'}, which has no revision {revision!r}"
            )
        return folder
    if folder.is_file():
        raise InputError(
            f"{model} is a file, expected the folder that holds config.json and the weights, or an ONNX or GGUF file"
        )
    if folder.suffix in {onnx_file.ENDING, GGUF}:
        raise InputError(f"no file {model}")
    if model.startswith((".", "/", "~")) or "\\" in model or model.count("/") > 1:
        raise InputError(f"no folder {model}")
    return shipped(model, revision) or _fetch(model, revision)


def refuse_without_tokenizer(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose bundle could take no texts, with the cure; a GGUF file holds its tokenizer."""
    if is_gguf(checkpoint) or (checkpoint.root / TOKENIZER).is_file():
        return
    source = _source(checkpoint.root, checkpoint.name, checkpoint.revision)
    raise InputError(
        f"{source} has no {TOKENIZER}, without which a bundle cannot take texts; make one with transformers: "
        f"python -c \"import transformers as t; t.AutoTokenizer.from_pretrained('{source}', use_fast=True)"
        ".save_pretrained('FOLDER')\", and put it beside config.json; "
        "or build for token ids alone with --no-tokenizer"
    )


def first_line(error: BaseException) -> str:
    """What another library says, without the advice that follows it."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def is_gguf(checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint is a GGUF file."""
    return checkpoint.root.suffix == GGUF and checkpoint.root.is_file()


def _is_folder(model: str) -> bool:
    return Path(model).expanduser().is_dir()


def _shown(name: str) -> str:
    """A folder's name as the name of a model: what cannot be printed, or sent as JSON, is replaced."""
    return "".join(letter if letter.isprintable() else "_" for letter in name)


def read_json(path: Path) -> dict[str, Any]:
    """An object in a JSON file of the checkpoint."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds {type(value).__name__}, expected an object")
    return value


def module_folders(root: Path) -> tuple[tuple[str, str], ...]:
    """Kind and folder of each sentence-transformers module, in order; none without modules.json."""
    path = root / "modules.json"
    if not path.is_file():
        return ()
    try:
        entries = json.loads(path.read_text("utf-8"))
        return tuple((str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in entries)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a list of modules: {error!r}") from error


def _read(root: Path, name: str, revision: str) -> Checkpoint:
    if not (root / "config.json").is_file():
        raise InputError(f"{root} has no config.json; expected a model folder in the HuggingFace layout")
    config = read_json(root / "config.json")
    files = weight_files(root)
    if not files:
        source = _source(root, name, revision)
        raise InputError(f"{source} has no {SINGLE} and no {INDEX}; {_conversion(source, config)}")
    for path in files:
        read_header(path)
    return Checkpoint(root=root, name=name, revision=revision, config=config, digest=_digest(root))


def _from_gguf(file: Path) -> Checkpoint:
    """A GGUF file, whose settings are read as config.json would say them."""
    from alula.families.gguf_decoder import read_decoder  # noqa: PLC0415 - for such files only

    config = read_decoder(file).config
    return Checkpoint(
        root=file, name=_shown(file.stem), revision="local", config=config, digest=_digest_of(file)
    )


def _from_file(file: Path, name: str) -> Checkpoint:
    """A ready-made ONNX file, which says itself what it is: there are no settings beside it."""
    digest = onnx_file.digest_of(file)
    return Checkpoint(root=file, name=name, revision="local", config={}, digest=digest)


def _source(root: Path, name: str, revision: str) -> str:
    """What to call the checkpoint by: a hub id, or the folder where it lies."""
    return str(root) if revision == "local" else name


def _conversion(source: str, config: Mapping[str, Any]) -> str:
    architecture = architecture_of(config) or "AutoModel"
    return (
        "where its weights are in pytorch_model.bin, convert them once with torch and transformers installed: "
        f"python -c \"import transformers as t; t.{architecture}.from_pretrained('{source}').save_pretrained('NEW')\", "
        "copy its tokenizer files to NEW, and give NEW"
    )


def architecture_of(config: Mapping[str, Any]) -> str:
    """The class of transformers that the checkpoint was saved from; empty where config.json does not say."""
    named = config.get("architectures") or []
    if not isinstance(named, list):
        raise InputError(f"config.json: architectures is {type(named).__name__}, expected a list of names")
    return str(named[0]) if named else ""


def _fetch(model: str, revision: str) -> Path:
    try:
        from huggingface_hub import HfApi, snapshot_download  # noqa: PLC0415 - for building only
        from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(f"no folder {model}; fetching it from the hub", "build") from error
    download = partial(
        snapshot_download, model, allow_patterns=list(_FETCHED), ignore_patterns=list(_NOT_FETCHED)
    )
    try:
        # Asked first, since the download itself waits for ever on a hub that takes the call and says nothing.
        found = HfApi().model_info(model, revision=revision, timeout=_HUB_ANSWERS_WITHIN_S)
        return Path(download(revision=found.sha))
    except RepositoryNotFoundError as error:
        raise _not_fetched(model, revision, error) from error
    except Exception as error:  # the library's HTTP client, and so its errors, differ between versions
        try:
            return Path(download(revision=revision, local_files_only=True))
        except (LocalEntryNotFoundError, OSError, ValueError):
            raise _not_fetched(model, revision, error) from error


def _not_fetched(model: str, revision: str, error: Exception) -> InputError:
    return InputError(
        f"no folder {model}, and fetching {model!r} at {revision!r} from the hub failed: {first_line(error)}; "
        "check the id, its revision and the network, log in if the model is gated, or give a local folder"
    )


def _digest(root: Path) -> str:
    """Hash names and contents of what decides the graph, in one order."""
    total = hashlib.sha256()
    for path in sorted(set(_deciding(root))):
        total.update(f"{path.relative_to(root).as_posix()}\0{_digest_of(path)}\n".encode())
    return total.hexdigest()


def _digest_of(path: Path) -> str:
    content = hashlib.sha256()
    buffer = memoryview(bytearray(_BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            content.update(buffer[:count])
    return content.hexdigest()


def _deciding(root: Path) -> Iterator[Path]:
    for pattern in _SETTINGS:
        yield from root.glob(pattern)
    yield from weight_files(root)
    for _, folder in module_folders(root):
        if folder:
            yield from (root / folder).glob("config.json")
            yield from weight_files(root / folder)
