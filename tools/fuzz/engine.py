"""One chunk of fuzzing, in a process of its own: what `run.py` and `minimise.py` start.

It is run as ``python -m tools.fuzz.engine TARGET [arguments of libFuzzer]``. Kernels run as plain Python, so that
coverage sees them and no compiled code is waited for.
"""

from __future__ import annotations

import os
import resource
import sys
from importlib import import_module
from random import Random
from typing import Any

MOST_MEMORY = 8 << 30
"""Bytes of address space: an allocation that a hostile input asks for ends in an error, not in a swapping machine."""


def main(arguments: list[str]) -> None:
    """Fuzz one target; libFuzzer ends the process."""
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    # It carries no types.
    atheris: Any = import_module("atheris")

    with atheris.instrument_imports(include=["cnrfmt"], enable_loader_override=False):
        from tools.fuzz.targets import TARGETS
    target = TARGETS[arguments[0]]

    def mutator(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        assert target.mutate is not None
        if random.random() < 0.5:
            return bytes(atheris.Mutate(data, most))
        mutated = target.mutate(bytes(data), random)
        return mutated if len(mutated) <= most else bytes(atheris.Mutate(data, most))

    options: dict[str, Any] = {} if target.mutate is None else {"custom_mutator": mutator}
    # To merge a corpus, libFuzzer starts itself again by the name that it is given.
    program = os.environ.get("FUZZ_PROGRAM", sys.argv[0])
    words = [program, f"-max_len={target.most_bytes}", "-timeout=60", "-rss_limit_mb=3000", *arguments[1:]]
    atheris.Setup(words, target.run, **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
