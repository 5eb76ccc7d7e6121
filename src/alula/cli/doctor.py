"""`alula doctor`: what this machine can do, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from alula.cli.console import print_json, print_rows
from alula.core.engine import Traits
from alula.core.machine import installed, machine
from alula.core.words import OFFERED
from alula.engines import CPU, GPU, extra_of, importable, traits
from alula.engines.cuda import Device, devices, driver_version
from alula.engines.cuda import installed as has_bindings
from alula.engines.tensorrt.vendor import version_of
from alula.serve.lifetime import PACKAGES

# What each ability needs, and the extra that brings it.
ABILITIES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("build", "build", ("onnx", "onnx_ir", "ml_dtypes", "tokenizers", "huggingface_hub")),
    ("run on openvino", "cpu", ("openvino",)),
    ("run on onnxruntime", "cpu", ("onnxruntime",)),
    ("serve", "serve", PACKAGES),
    ("compare with pytorch", "torch", ("torch", "transformers")),
)


def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document instead of tables."),
) -> int:
    """Show what this machine is, what each target can do here, and what is missing."""
    rows = [_ability(*ability) for ability in ABILITIES]
    found, driver = devices(), driver_version()
    targets = [target_row(name, _version(name), traits(name)) for name in (*CPU, *GPU)]
    facts = machine()
    if as_json:
        gpus = [
            {"name": gpu.name, "capability": gpu.capability, "memory_bytes": gpu.memory_bytes}
            for gpu in found
        ]
        print_json("doctor", rows, gpus=gpus, cuda_driver=driver, targets=targets)
        return 0
    described = [
        ("cpu", str(facts["cpu"])),
        ("features", ", ".join(facts["features"]) or "none that matter"),
        ("cores", str(facts["cores"])),
        ("memory", f"{facts['memory_bytes'] / 2**30:.1f} GiB"),
        *gpu_lines(found, driver, bindings=has_bindings()),
        ("python", str(facts["python"])),
    ]
    print_rows("machine", ("", ""), [(name, value) for name, value in described])
    print_rows(
        "abilities",
        ("ability", "here", "with", "to get it"),
        [
            (
                str(row["ability"]),
                "yes" if row["available"] else "no",
                str(row["found"]),
                "" if row["available"] else f"pip install 'alula[{row['extra']}]'",
            )
            for row in rows
        ],
    )
    print_rows(
        "targets",
        ("target", "found", "compiles", "runs", "precisions", "why not", "to get it"),
        _cells(targets),
    )
    for row in targets:
        if row["opset"] is not None:
            print(f"{row['target']}: reads opset {row['opset']} at most, which graphs are then written in")
        for what, why in row["lacks"].items():
            print(f"{row['target']}: no {what}: {why}")
    if not {"amx_bf16", "avx512_bf16"} & set(facts["features"]):
        print("bf16 runs on this CPU without bf16 instructions: right numbers, no gain in speed")
    return 0


def gpu_lines(found: Sequence[Device], driver: str | None, *, bindings: bool) -> list[tuple[str, str]]:
    """What is known of GPUs and their driver, and why not more."""
    if not bindings:
        return [("gpu", "not looked for: that needs cuda-bindings (pip install 'alula[tensorrt]')")]
    if driver is None:
        return [("gpu", "none: there is no CUDA driver here")]
    gpus = [
        ("gpu", f"{gpu.name}, compute capability {gpu.capability}, {gpu.memory_bytes / 2**30:.1f} GiB")
        for gpu in found
    ]
    return [
        *(gpus or [("gpu", "none that the CUDA driver shows")]),
        ("cuda driver", f"serves CUDA up to {driver}"),
    ]


def target_row(name: str, version: str | None, found: Traits) -> dict[str, Any]:
    """What a target can do here: compile and run, compile alone, or neither, why, and what would help."""
    why_not = found.cannot_compile or found.cannot_run
    missing = version is None or "is not installed" in why_not
    return {
        "target": name,
        "version": version,
        "compiles": version is not None and not found.cannot_compile,
        "runs": version is not None and not found.cannot_run,
        "precisions": [precision for precision in OFFERED[name] if precision not in found.lacks],
        "lacks": dict(found.lacks),
        "opset": found.opset,
        "why_not": "not installed" if version is None else why_not,
        "get": f"pip install 'alula[{extra_of(name)}]'" if missing else "",
    }


def _version(name: str) -> str | None:
    if name in GPU:
        return version_of(name)
    return installed(name) if importable(name) else None


def _cells(targets: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            row["target"],
            row["version"] or "no",
            "yes" if row["compiles"] else "no",
            "yes" if row["runs"] else "no",
            ", ".join(row["precisions"]),
            row["why_not"],
            row["get"],
        )
        for row in targets
    ]


def _ability(ability: str, extra: str, packages: tuple[str, ...]) -> dict[str, object]:
    versions = {name: installed(name) for name in packages}
    missing = [name for name, version in versions.items() if version is None]
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
    return {
        "ability": ability,
        "available": not missing,
        "found": found,
        "missing": missing,
        "extra": extra,
    }
