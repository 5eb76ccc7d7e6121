"""`alula doctor`: what this machine can do, and what is missing."""

from __future__ import annotations

import typer

from alula.cli.console import print_json, print_rows
from alula.core.machine import installed, machine
from alula.core.words import OFFERED

# What each ability needs, and the extra that brings it.
ABILITIES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("build", "build", ("onnx", "onnx_ir", "ml_dtypes", "tokenizers", "huggingface_hub")),
    ("run on openvino", "cpu", ("openvino",)),
    ("run on onnxruntime", "cpu", ("onnxruntime",)),
    ("serve", "serve", ("starlette", "uvicorn", "tokenizers", "prometheus_client")),
    ("compare with pytorch", "torch", ("torch", "transformers")),
)


def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document instead of tables."),
) -> int:
    """Show what this machine is, what each target can do here, and what is missing."""
    rows = [_ability(*ability) for ability in ABILITIES]
    facts = machine()
    if as_json:
        print_json("doctor", rows)
        return 0
    described = [
        ("cpu", str(facts["cpu"])),
        ("features", ", ".join(facts["features"]) or "none that matter"),
        ("cores", str(facts["cores"])),
        ("memory", f"{facts['memory_bytes'] / 2**30:.1f} GiB"),
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
        "precisions",
        ("engine", "offers"),
        [(name, ", ".join(offered)) for name, offered in OFFERED.items() if name != "fake"],
    )
    if not {"amx_bf16", "avx512_bf16"} & set(facts["features"]):
        print("bf16 runs here without bf16 instructions: right numbers, no gain in speed")
    return 0


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
