"""Loading a whole model into fresh arrays, from the page cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cnrfmt
from tools.bench._figures import Figure, Target, in_turn, say, timed
from tools.bench._setting import Setting, clear, warm


def figures(setting: Setting) -> list[Figure]:
    """Raw loads against h5py's contiguous datasets and safetensors; quantised loads against raw ones."""
    from safetensors.numpy import load_file

    say("load: raw, 8-bit, 4-bit, h5py, safetensors")
    raw, eight, four = (setting.container(e) for e in ("raw", "8-bit", "4-bit"))
    hdf5, other = write_hdf5(setting), write_safetensors(setting)
    for path in (raw, eight, four, hdf5, other):
        warm(path)
    contenders = {
        "raw": lambda: cnrfmt.load(raw),
        "h5py": lambda: read_hdf5(hdf5),
        "raw, unverified": lambda: cnrfmt.load(raw, verify="none"),
        "safetensors": lambda: load_file(other),
        "8-bit": lambda: cnrfmt.load(eight),
        "4-bit": lambda: cnrfmt.load(four),
        "raw, one thread": lambda: cnrfmt.load(raw, threads=1),
    }
    for work in contenders.values():
        work()
    times = in_turn(setting.repeat, {name: lambda _, w=work: timed(w) for name, work in contenders.items()})
    clear(hdf5, other)
    return [
        _figure(setting, times, "raw", "h5py", 1.0),
        _figure(setting, times, "raw", "safetensors", 3.0),
        _figure(setting, times, "raw, unverified", "h5py", 1.0),
        _figure(setting, times, "raw, unverified", "safetensors", 3.0),
        _figure(setting, times, "8-bit", "raw", 1.0),
        _figure(setting, times, "4-bit", "raw", 1.0),
        _figure(setting, times, "raw, one thread", "h5py", None),
    ]


def _figure(setting: Setting, times: dict[str, list[float]], name: str, peer: str, bound: float | None) -> Figure:
    return Figure(
        group="load",
        name=name,
        cnrfmt=times[name],
        peer_name="cnrfmt raw" if peer == "raw" else peer,
        peer=times[peer],
        ratio_of="speed",
        target=None if bound is None else Target("ratio", ">=", bound),
        verify="none" if "unverified" in name else "touched",
        touch="first",
        cache="warm",
        bytes_moved=setting.nbytes,
    )


def write_hdf5(setting: Setting) -> Path:
    """The model as contiguous datasets, h5py's quickest form."""
    import h5py

    path = setting.folder / "model.h5"
    with h5py.File(path, "w") as file:
        for name, values in setting.tables.items():
            file.create_dataset(name, data=values)
    return path


def read_hdf5(path: Path) -> dict[str, Any]:
    """All datasets, each into a new array."""
    import h5py

    with h5py.File(path, "r") as file:
        return {name: dataset[...] for name, dataset in file.items()}


def write_safetensors(setting: Setting) -> Path:
    """The model as safetensors."""
    from safetensors.numpy import save_file

    path = setting.folder / "model.safetensors"
    save_file(setting.tables, path)
    return path
