"""What an engine was built for, as text in its record, and where it may run. Pure."""

from __future__ import annotations

from alula.engines.cuda import Device
from alula.engines.tensorrt.vendor import RTX_CAPABILITIES

PORTABLE = "sm_80+"


def target(name: str, version: str, machine: str, device: Device | None, *, portable: bool) -> str:
    """Runtime, version, processor, compute capability and GPU; portable engines name the least capability only."""
    if portable or name == "tensorrt-rtx":
        return f"{name} {version} {machine} {PORTABLE}"
    where = f"{sm(device)} {device.name}" if device is not None else "no GPU"
    return f"{name} {version} {machine} {where}"


def sm(device: Device) -> str:
    """A compute capability as compilers write it."""
    return "sm_" + device.capability.replace(".", "")


def runs_on(built: str, here: str) -> bool:
    """Whether an engine built for one target runs on another: the same one, or a portable one.

    Those run on later minor versions of one major version, not on earlier ones.
    """
    if built == here:
        return True
    name, version, machine, where = (*built.split(" ", 3), "", "", "")[:4]
    name_here, version_here, machine_here, where_here = (*here.split(" ", 3), "", "", "")[:4]
    if where != PORTABLE or (name, machine) != (name_here, machine_here):
        return False
    major, major_here = version.split(".")[0], version_here.split(".")[0]
    if name == "tensorrt-rtx":
        return version == version_here
    return major == major_here and _numbers(version_here) >= _numbers(version) and _capable(where_here)


def refuses_device(name: str, device: Device) -> str:
    """Why a target has no code for a GPU; empty if it has."""
    if name == "tensorrt-rtx" and device.capability not in RTX_CAPABILITIES:
        return f"TensorRT-RTX does not run on {device.name} ({device.capability}); use --target tensorrt"
    return ""


def _capable(where: str) -> bool:
    digits = where.split(" ", maxsplit=1)[0].removeprefix("sm_")
    return digits.isdigit() and int(digits) >= 80


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
