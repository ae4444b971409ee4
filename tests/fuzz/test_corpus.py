"""Every input of the fuzzers' corpus passes its target. Without atheris, with compiled kernels or interpreted ones.

``python -m tools.fuzz.run --target TARGET --replay FILE`` shows a single one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.fuzz import rows, seeds
from tools.fuzz.targets import CORPUS, TARGETS, corpus_of

MOST_BYTES = 1 << 20
"""Bytes of the whole corpus: it lies in every checkout."""


@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_fails(name: str) -> None:
    """Hostile scales make infinities and NaNs, of which numpy warns in the validator."""
    inputs = corpus_of(name)
    assert inputs
    for path in inputs:
        try:
            TARGETS[name].run(path.read_bytes())
        except Exception as error:
            raise AssertionError(f"python -m tools.fuzz.run --target {name} --replay {path}") from error


@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
def test_every_encoding_passes() -> None:
    """Coverage hardly tells one encoding's numbers from another's, so that the corpus has few of them."""
    found = {name: data for target, name, data in seeds.of_rows() if target == "encoded_rows"}
    assert len(found) == 2 * len(rows.LAYOUTS)
    for name, data in found.items():
        try:
            rows.encoded_rows(data)
        except Exception as error:
            raise AssertionError(f"seed {name} of encoded_rows: {rows.LAYOUTS[data[0]]}") from error


def test_the_corpus_is_small() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)
    sizes = {path: path.stat().st_size for name in TARGETS for path in corpus_of(name)}
    assert sum(sizes.values()) <= MOST_BYTES
    for path, size in sizes.items():
        assert size <= TARGETS[Path(path).parent.name].most_bytes


def test_the_shares_make_up_all_executions() -> None:
    assert sum(target.share for target in TARGETS.values()) == 1000
