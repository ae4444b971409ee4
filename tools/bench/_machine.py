"""Facts about the machine, without which a figure says little."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cnrfmt
from cnrfmt.parallel import thread_count

PACKAGES = ("numpy", "numba", "xxhash", "h5py", "safetensors", "torch", "wordllama")


def facts(folder: Path, packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Processor, memory, file system of `folder`, load, and the versions of all that is measured."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": thread_count(None),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cnrfmt": cnrfmt.__version__,
        "packages": {name: _version(name) for name in packages},
        "file_system": _file_system(folder),
        "free_disk_bytes": _free(folder),
        "memory_bytes": memory("MemTotal"),
        "free_memory_bytes": memory("MemAvailable"),
        "huge_pages": _first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load_average": list(os.getloadavg()),
    }


def versions(machine: dict[str, Any]) -> str:
    """What was measured, and by what, in words; of the `facts`."""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return f"cnrfmt {machine['cnrfmt']}, Python {machine['python']}, {packages}"


def memory(field: str) -> int:
    """A field of /proc/meminfo, in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, value = line.split(":")
        if name == field:
            return int(value.split()[0]) << 10
    return 0


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _file_system(folder: Path) -> str:
    """Type and mount options of the file system that `folder` is on."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        inside = folder.resolve().is_relative_to(place)
        if inside and len(place) >= len(best[0]):
            best = (place, f"{kind} ({options})")
    return best[1]


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text().splitlines()[0]
    except OSError:
        return None
