"""What the fork server loads before the first child: the library with its kernels, which children then share."""

from __future__ import annotations

from tests.attacks.support import ROOT, command, outcome

_KINDS = ("cast", "chain", "codebook", "dense-and", "exceptions", "index-", "log-", "rowwise")
for _path in sorted((ROOT / "spec" / "vectors" / "valid").iterdir()):
    if _path.suffix != ".json" and _path.stem.startswith(_KINDS):
        outcome(_path)
for _verb in ("info", "ls", "verify"):
    command(ROOT / "spec" / "vectors" / "valid" / "chain.cnr", _verb)
