"""The process of the interrupted run: ``python -m cnrfmt.demo.worker``, started by the demo.

Writes one JSON object per line to its standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from pathlib import Path
from typing import Any

from cnrfmt.demo import trainer
from cnrfmt.demo.orders import load_orders
from cnrfmt.demo.store import Store


def main(arguments: list[str] | None = None) -> None:
    """Trains as the arguments say, from the newest checkpoint if there is one."""
    parser = argparse.ArgumentParser(prog="cnrfmt.demo.worker")
    parser.add_argument("path", type=Path)
    parser.add_argument("--bits", type=int)
    parser.add_argument("--policy", default=Store.policy)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--users", type=int)
    parser.add_argument("--die-at", type=int)
    given = parser.parse_args(arguments)
    data = load_orders(users=given.users)
    store = Store(given.path, given.bits, given.policy, given.threads)
    trainer.rehearse(store, data, given.every)
    trainer.run(store, data, _report, every=given.every, seed=given.seed, die_at=given.die_at)


_lock = threading.Lock()


def _report(event: dict[str, Any]) -> None:
    # Training and the checkpoint's thread both report; a line must stay whole.
    with _lock:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
