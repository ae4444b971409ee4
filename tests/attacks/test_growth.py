"""What large files cost grows as the files do: four times the content is four times the work, never sixteen times.

Work is counted in calls, which no machine's pace changes; memory is bounded for the child that does it. The largest
legal sizes are measured by ``python -m tests.attacks.growth``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.growth import CASES, calls, size_of, use
from tests.attacks.support import in_child, lay

TIMES = 4
SLACK = 1.25
"""Sorting takes a little more than in proportion."""
FIXED = 2000
MEMORY = 64 << 20
"""Bytes for what doesn't grow with the file."""


@pytest.mark.parametrize("name", CASES)
def test_work_grows_as_the_file_does(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    few, many = (in_child(calls, lay(tmp_path / str(n), case.build(n))) for n in (case.size, TIMES * case.size))
    assert isinstance(few, int), repr(few)
    assert isinstance(many, int), repr(many)
    assert many <= SLACK * TIMES * few + FIXED, f"{few} calls for {case.size}, {many} for {TIMES * case.size}"


LARGE = {"tables": 16384, "versions": 4096, "chain": 256, "dense": 16384, "pieces": 40_000, "metadata": 2_000_000}


@pytest.mark.parametrize(("name", "count"), LARGE.items())
def test_memory_is_a_multiple_of_the_file(tmp_path: Path, name: str, count: int) -> None:
    """Metadata become objects 32 times as large at the most, and each validator and reader has its own."""
    path = lay(tmp_path / "large", CASES[name].build(count))
    found = in_child(use, path, memory=MEMORY + 80 * size_of(path))
    assert found is None, repr(found)
