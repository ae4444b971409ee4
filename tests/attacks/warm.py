"""What the fork server loads before the first child: the library with its kernels, which children then share."""

from __future__ import annotations

from tests.attacks.support import ROOT, command, outcome

for _path in sorted((ROOT / "spec" / "vectors" / "valid").glob("*.cnr")):
    if _path.stem.startswith(("chain", "dense-and", "exceptions", "index-", "rowwise")):
        outcome(_path)
for _verb in ("info", "ls", "verify"):
    command(ROOT / "spec" / "vectors" / "valid" / "chain.cnr", _verb)
