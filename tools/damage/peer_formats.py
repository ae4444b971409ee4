"""How cnrfmt and its peers store and read the same table: one `Format` for each.

The peers are needed by `tools/damage/peers.py` alone, and each is imported where it is used: safetensors, h5py, torch,
zarr (3 or newer) and lmdb; and wordllama, which carries the table.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt

Table = np.ndarray[Any, np.dtype[np.float32]]
NAME = "token"
CHUNK_ROWS = 32


def trained_table(rows: int) -> Table:
    """The first rows of the token embeddings that the package wordllama carries, as float32."""
    from safetensors import safe_open

    spec = find_spec("wordllama")
    if spec is None or spec.origin is None:
        raise SystemExit("the table comes from the package wordllama: pip install wordllama")
    path = Path(spec.origin).parent / "weights" / "l2_supercat_256.safetensors"
    with safe_open(path, "np") as file:
        return np.ascontiguousarray(file.get_tensor("embedding.weight")[:rows].astype(np.float32))


@dataclass(frozen=True)
class Format:
    """A format: what checks it makes by its own word, how a table is written below a path and read again."""

    name: str
    checks: str
    package: str
    write: Callable[[Path, Table], None]
    read: Callable[[Path], Table]

    @property
    def version(self) -> str:
        """The release of its package."""
        return metadata.version(self.package)


def _write_safetensors(path: Path, table: Table) -> None:
    from safetensors.numpy import save_file

    save_file({NAME: table}, path)


def _read_safetensors(path: Path) -> Table:
    from safetensors.numpy import load_file

    return load_file(path)[NAME]


def _hdf5_writer(**options: Any) -> Callable[[Path, Table], None]:
    def write(path: Path, table: Table) -> None:
        import h5py

        with h5py.File(path, "w") as file:
            file.create_dataset(NAME, data=table, **options)

    return write


def _read_hdf5(path: Path) -> Table:
    import h5py

    with h5py.File(path, "r") as file:
        return np.asarray(file[NAME][...])


def _write_lmdb(path: Path, table: Table) -> None:
    import lmdb

    path.mkdir()
    with lmdb.open(str(path), map_size=1 << 28) as env, env.begin(write=True) as transaction:
        for number, row in enumerate(table):
            transaction.put(number.to_bytes(8, "big"), row.tobytes())


def _read_lmdb(path: Path) -> Table:
    import lmdb

    with lmdb.open(str(path), map_size=1 << 28, readonly=True, lock=False) as env, env.begin() as transaction:
        keys, rows = zip(*transaction.cursor(), strict=True)
    if list(keys) != [number.to_bytes(8, "big") for number in range(len(keys))]:
        # What it gives isn't the table: whoever asks for its rows gets other rows, or misses some.
        return np.empty((0, 0), np.float32)
    return np.frombuffer(b"".join(rows), np.float32).reshape(len(rows), -1)


def _zarr_writer(*codecs: str, default: bool = False) -> Callable[[Path, Table], None]:
    def write(path: Path, table: Table) -> None:
        import zarr
        import zarr.codecs

        options: dict[str, Any] = {} if default else {"compressors": [getattr(zarr.codecs, name)() for name in codecs]}
        group = zarr.open_group(path, mode="w", zarr_format=3)
        group.create_array(NAME, data=table, chunks=(CHUNK_ROWS, table.shape[1]), **options)

    return write


def _read_zarr(path: Path) -> Table:
    import zarr

    found: Any = zarr.open_group(path, mode="r")[NAME]
    return np.asarray(found[...])


@contextmanager
def _one_process() -> Iterator[None]:
    """DCP warns that there is one process only, which is meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _write_dcp(path: Path, table: Table) -> None:
    import torch
    from torch.distributed.checkpoint.state_dict_saver import save as save_dcp

    with _one_process():
        save_dcp({NAME: torch.from_numpy(table)}, checkpoint_id=path, no_dist=True)


def _reader_of_dcp(shape: tuple[int, ...]) -> Callable[[Path], Table]:
    def read(path: Path) -> Table:
        import torch
        from torch.distributed.checkpoint.state_dict_loader import load as load_dcp

        state = {NAME: torch.zeros(shape)}
        with _one_process():
            load_dcp(state, checkpoint_id=path, no_dist=True)
        return np.asarray(state[NAME].numpy())

    return read


def _write_torch(path: Path, table: Table) -> None:
    import torch

    torch.save({NAME: torch.from_numpy(table)}, path)


def _read_torch(path: Path) -> Table:
    import torch

    return np.asarray(torch.load(path, weights_only=True)[NAME].numpy())


def _write_npz(path: Path, table: Table) -> None:
    with path.open("wb") as file:
        np.savez(file, token=table)


def _read_npz(path: Path) -> Table:
    with np.load(path) as file:
        return np.asarray(file[NAME])


def _write_cnrfmt(path: Path, table: Table) -> None:
    cnrfmt.save(path, {NAME: table}, threads=1)
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)


def _read_cnrfmt(path: Path) -> Table:
    found: Table = cnrfmt.load(path, threads=1)[NAME]
    return found


def formats(shape: tuple[int, ...]) -> dict[str, tuple[Format, str]]:
    """Each format by name, and the name of its file or folder."""
    summed = {"chunks": (CHUNK_ROWS, shape[1]), "fletcher32": True}
    with_crc = _zarr_writer("ZstdCodec", "Crc32cCodec")
    listed = (
        (Format("cnrfmt, single file", "xxh3 of every byte", "cnrfmt", _write_cnrfmt, _read_cnrfmt), "t.cnr"),
        (Format("cnrfmt, directory", "xxh3 of every byte", "cnrfmt", _write_cnrfmt, _read_cnrfmt), "t"),
        (Format("safetensors", "none", "safetensors", _write_safetensors, _read_safetensors), "t.safetensors"),
        (Format("h5py", "none", "h5py", _hdf5_writer(), _read_hdf5), "t.h5"),
        (Format("h5py, fletcher32", "Fletcher of chunks", "h5py", _hdf5_writer(**summed), _read_hdf5), "t.h5"),
        (Format("LMDB", "none", "lmdb", _write_lmdb, _read_lmdb), "t"),
        (Format("zarr 3, default (zstd)", "what zstd notices", "zarr", _zarr_writer(default=True), _read_zarr), "t"),
        (Format("zarr 3, uncompressed", "none", "zarr", _zarr_writer(), _read_zarr), "t"),
        (Format("zarr 3, zstd and crc32c", "CRC of chunks", "zarr", with_crc, _read_zarr), "t"),
        (Format("PyTorch DCP", "none", "torch", _write_dcp, _reader_of_dcp(shape)), "t"),
        (Format("torch.save", "zip's CRC, never read", "torch", _write_torch, _read_torch), "t.pt"),
        (Format("numpy npz", "zip's CRC", "numpy", _write_npz, _read_npz), "t.npz"),
    )
    return {format_.name: (format_, file) for format_, file in listed}
