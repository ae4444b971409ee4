"""Progress and results of long runs, written down whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, data: Any) -> None:
    """Puts a JSON file in the place of the one that is there; a run that is ended meanwhile leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    os.replace(unfinished, path)
