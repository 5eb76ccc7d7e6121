"""The import rules, checked. The table is explained in docs/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "alula"

ROOMS = (
    "families",
    "graphs",
    "engines",
    "verify",
    "bench",
    "bundles",
    "codecs",
    "batching",
    "generate",
    "data",
    "calibration",
    "fusion",
    "documents",
)
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    **{room: {"core"} for room in ROOMS},
    "questions": {"core", "codecs", "data", "verify"},
    "running": {"core", "graphs", "engines"},
    "evidence": {"core", "questions", "running", *ROOMS},
    "rehearsed": {"core", "engines", "bundles", "verify"},
    "pictured": {"core", "codecs", "verify"},
    "scripts": {"core", "pictured", "rehearsed", "running", *ROOMS},
    "local": {"core", "engines", "bundles", "rehearsed", "verify"},
    "generating": {"core", "local", "engines", "bundles", "codecs", "generate"},
    "layers": {"core", "local", "bench", "bundles", "engines", "fusion"},
    "calibrate": {"core", "running", *ROOMS},
    "magnitudes": {"core", "running", "scripts", *ROOMS},
    "prompted": {"core", "prompting", "rehearsed", "scripts", *ROOMS},
    "rungs": {"core", "calibrate", "evidence", "magnitudes", "prompted", "rehearsed", *ROOMS},
    "mixed": {"core", "calibrate", "questions", "running", *ROOMS},
    "ladder": {"core", "evidence", "mixed", "rungs", *ROOMS},
    "planning": {"core", "data", "engines", "questions"},
    "choices": {"core", "evidence", "planning", *ROOMS},
    "grounds": {
        "core",
        "calibrate",
        "choices",
        "evidence",
        "magnitudes",
        "prompted",
        "questions",
        "rehearsed",
        *ROOMS,
    },
    "build": {"core", "choices", "grounds", "ladder", "rungs", *ROOMS},
    "pace": {"core", "bench", "engines"},
    "footprint": {"core", "local", "bench", "bundles", "engines", "families", "pace", "scripts"},
    "benching": {"core", "evidence", "footprint", "local", "pace", "prove", *ROOMS},
    "prompting": {"core", "bundles", "codecs", "generate"},
    "ocr": {"core", "generating", "local", "looking", "prompting", *ROOMS},
    "looking": {"core", "bundles", "codecs", "generate", "generating", "prompting"},
    "packaged": {"core", "build", "bundles", "ocr"},
    "prove": {"core", "evidence", "local", "prompted", "questions", *ROOMS},
    "exposition": {"core"},
    "watching": {"core", "exposition"},
    "serve": {
        "core",
        "documents",
        "generating",
        "local",
        "ocr",
        "prompting",
        "engines",
        "bundles",
        "codecs",
        "batching",
        "generate",
    },
    "cli": {
        "core",
        "benching",
        "build",
        "exposition",
        "generating",
        "layers",
        "planning",
        "prompting",
        "local",
        "ocr",
        "packaged",
        "prove",
        "serve",
        "watching",
        *ROOMS,
    },
    "__main__": {"cli"},
    "__init__": set(),
}

OWNERS: dict[str, set[str]] = {
    "torch": {"engines/torch", "engines/torch_seeing", "engines/torch_writing", "families/traced"},
    "transformers": {"engines/torch", "engines/torch_seeing", "engines/torch_writing", "families/traced"},
    "openvino": {
        "engines/openvino",
        "engines/paged/forms",
        "engines/paged/graph",
        "engines/paged/session",
    },
    "onnxruntime": {"engines/onnxruntime"},
    "tensorrt": {"engines/tensorrt/vendor"},
    "tensorrt_rtx": {"engines/tensorrt/vendor"},
    "tensorrt_rtx_bindings": {"engines/tensorrt/vendor"},
    "cuda": {"engines/cuda"},
    "onnx": {"graphs", "families"},
    "onnx_ir": {"graphs", "families"},
    "onnxscript": {"families/traced"},
    "safetensors": {"families"},
    "huggingface_hub": {"families/checkpoint", "families/traced", "engines/torch"},
    "tokenizers": {"codecs"},
    "PIL": {"codecs"},
    "jinja2": {"codecs/templates"},
    "starlette": {"serve"},
    "uvicorn": {"serve"},
    "orjson": {"serve/jsons"},
    "prometheus_client": {"serve"},
    "grpc": {"serve/grpc_admission", "serve/grpc_front"},
    "pynvml": {"serve/gpus"},
    "opentelemetry": {"serve/tracing"},
    "google": {"graphs/save", "serve/grpc_messages"},
    "typer": {"cli"},
    "click": {"cli"},
    "rich": {"cli"},
    "ml_dtypes": {"families", "graphs"},
    "pyarrow": {"data/tables"},
    "pypdfium2": {"documents/pdf"},
    "av": {"documents/video"},
}

FILES = sorted(ROOT.rglob("*.py"))


def place(path: Path, root: Path = ROOT) -> str:
    return path.relative_to(root).with_suffix("").as_posix()


def imported(source: str) -> set[str]:
    """Every dotted name imported anywhere in the file, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names.add(node.module or "")
            if node.module == "alula":
                names.update(f"alula.{alias.name}" for alias in node.names)
    return names


def violations(where: str, source: str) -> list[str]:
    """What the file at `where` (such as "engines/openvino") imports and must not."""
    room = where.split("/", maxsplit=1)[0]
    found = []
    for name in sorted(imported(source)):
        first, *rest = name.split(".")
        if first == "alula":
            if rest and rest[0] not in MAY_IMPORT[room] | {room, "__version__"}:
                found.append(f"{where} imports {name}")
        elif first in OWNERS and not OWNERS[first] & {room, where}:
            found.append(f"{where} imports {name}, which {sorted(OWNERS[first])} own")
    return found


def test_there_is_something_to_check() -> None:
    assert len(FILES) > 30


@pytest.mark.parametrize("path", FILES, ids=place)
def test_imports_point_down_and_vendors_have_one_owner(path: Path) -> None:
    assert violations(place(path), path.read_text()) == []


@pytest.mark.parametrize(
    ("where", "source"),
    [
        ("core/tensor", "import torch"),
        ("engines/openvino", "from alula.bundles import manifest"),
        ("bench/measure", "from alula import cli"),
        ("families/bert", "def f():\n    import transformers"),
        ("serve/app", "import alula.families.bert"),
        ("generate/scheduler", "from alula.batching import BatchPolicy"),
    ],
)
def test_a_planted_violation_is_found(where: str, source: str) -> None:
    assert len(violations(where, source)) == 1
