"""Saving a whole model, durably."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cnrfmt
from tools.bench._figures import Figure, Target, in_turn, say, timed
from tools.bench._setting import ENCODINGS, Setting, clear, sync_file

_LIMITS = {"8-bit": 0.40, "4-bit": 0.25}


def figures(setting: Setting) -> list[Figure]:
    """Raw, 8-bit and 4-bit saves against safetensors' `save_file` with fsync of file and folder."""
    say("save: raw, 8-bit, 4-bit, safetensors")
    contenders = _contenders(setting)
    for measure in contenders.values():
        measure(0)  # Kernels are compiled, and the allocator has seen the sizes.
    times = in_turn(setting.repeat, contenders)
    peer, raw = times["safetensors"], times["raw"]
    shown: dict[str, Any] = {
        "group": "save",
        "verify": "digests made",
        "touch": "new file",
        "cache": "nothing left to write back",
        "bytes_moved": setting.nbytes,
    }
    durable = "safetensors + fsync"
    least = Target("ratio", ">=", 0.95)
    found = [Figure(name="raw", cnrfmt=raw, peer_name=durable, peer=peer, ratio_of="speed", target=least, **shown)]
    for encoding, limit in _LIMITS.items():
        for name, other in (("cnrfmt raw", raw), (durable, peer)):
            most = Target("ratio", "<=", limit)
            own = times[encoding]
            found.append(Figure(name=encoding, cnrfmt=own, peer_name=name, peer=other, target=most, **shown))
    return found


def _contenders(setting: Setting) -> dict[str, Callable[[int], float]]:
    from safetensors.numpy import save_file

    path, other = setting.folder / "save.cnr", setting.folder / "save.safetensors"
    tables = setting.tables

    def save(encoding: str) -> float:
        clear(path, other)
        return timed(lambda: cnrfmt.save(path, tables, quantize=ENCODINGS[encoding]))

    def save_peer() -> None:
        save_file(tables, other)
        sync_file(other)

    def peer(_: int) -> float:
        clear(path, other)
        return timed(save_peer)

    return {
        "raw": lambda _: save("raw"),
        "safetensors": peer,
        "8-bit": lambda _: save("8-bit"),
        "4-bit": lambda _: save("4-bit"),
    }
