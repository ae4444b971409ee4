"""One measurement in a process of its own: run by `_memory.py`; prints JSON.

Nothing is imported here before it has to be, since imports are measured, too.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from typing import Any


def status_bytes(field: str) -> int:
    """A field of /proc/self/status: RssAnon is resident memory that no file stands behind, VmHWM the peak of all."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) << 10
    raise SystemExit(f"this kernel doesn't tell {field}")


def trim() -> None:
    """Gives back what the allocator only holds ready, so that it doesn't count as memory that is taken."""
    import ctypes

    ctypes.CDLL(None).malloc_trim(0)


class Peak:
    """The greatest RssAnon within a block, beyond that at its start; sampled every 5 ms by a thread."""

    def __enter__(self) -> Peak:
        self._before = self._most = status_bytes("RssAnon")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(0.005):
            self._most = max(self._most, status_bytes("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.extra = max(self._most, status_bytes("RssAnon")) - self._before


def _quantize(encoding: str) -> Any:
    import cnrfmt

    return None if encoding == "raw" else cnrfmt.Quantize(bits=int(encoding[0]))


def save_memory(source: str, dim: str, path: str, encoding: str) -> dict[str, Any]:
    """Saves a mapped table twice: the first time numba and the kernels are loaded, too."""
    import numpy as np

    import cnrfmt

    values = np.memmap(source, np.float32, "r").reshape(-1, int(dim))
    quantize = _quantize(encoding)
    found = {}
    for name in ("first", "later"):
        with Peak() as peak:
            cnrfmt.save(path, {"table": values}, quantize=quantize)
        found[name] = peak.extra
    found["resident"] = status_bytes("VmHWM")
    return found


def import_module(name: str) -> dict[str, Any]:
    """Seconds that an import takes."""
    start = time.perf_counter()
    importlib.import_module(name)
    return {"seconds": time.perf_counter() - start}


def first_save(path: str, encoding: str) -> dict[str, Any]:
    """Seconds of the import, and of the first save behind it."""
    start = time.perf_counter()
    import cnrfmt

    imported = time.perf_counter()
    import numpy as np

    values = np.random.default_rng(1).standard_normal((1000, 64)).astype(np.float32)
    quantize = _quantize(encoding)
    ready = time.perf_counter()
    cnrfmt.save(path, {"table": values}, quantize=quantize)
    return {"import": imported - start, "save": time.perf_counter() - ready}


def main(what: str, *arguments: str) -> None:
    """Measures one thing and prints it."""
    probes: dict[str, Any] = {"save-memory": save_memory, "import": import_module, "first-save": first_save}
    print(json.dumps(probes[what](*arguments)))


if __name__ == "__main__":
    main(*sys.argv[1:])
