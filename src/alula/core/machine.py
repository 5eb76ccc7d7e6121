"""What this machine is: the CPU features engines are compiled for, and the facts that a timing is reported with."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("alula", "openvino", "onnxruntime", "torch", "transformers", "numpy")

MOST_THREADS = 1_024
"""More than any machine here has cores: who asks for more has mistyped."""

# Each decides which kernels a runtime picks, so an engine compiled with one is not for a CPU without it.
FEATURES = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
)


def parse_cpuinfo(text: str) -> dict[str, str]:
    """The first processor's entries of the text of /proc/cpuinfo."""
    first = text.split("\n\n", maxsplit=1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def features_of(info: Mapping[str, str]) -> tuple[str, ...]:
    """Those of FEATURES that these entries name."""
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return tuple(feature for feature in FEATURES if feature in flags)


@cache
def cpuinfo() -> Mapping[str, str]:
    """The entries of /proc/cpuinfo of the machine at hand; empty where there is none."""
    try:
        return parse_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return {}


def cpu_features() -> tuple[str, ...]:
    """Those of FEATURES that this CPU has."""
    return features_of(cpuinfo())


def cpu_name() -> str:
    """The CPU as its maker names it, with family and model, since clouds hide the rest of the name."""
    info = cpuinfo()
    if "model name" not in info:
        return platform.processor() or platform.machine()
    return f"{info['model name']} (family {info.get('cpu family', '?')}, model {info.get('model', '?')})"


def usable_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def installed(package: str) -> str | None:
    """The installed version of a package, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """The facts that reports, manifests and timings carry, ready for JSON."""
    versions = {name: version for name in PACKAGES if (version := installed(name)) is not None}
    return {
        "cpu": cpu_name(),
        "features": list(cpu_features()),
        "cores": usable_cores(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": versions,
    }


def _memory_bytes() -> int:
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0
