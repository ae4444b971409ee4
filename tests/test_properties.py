"""Any sequence of commits, read by every path, says what a plain dictionary says."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cnrfmt
from cnrfmt.testing import Model, ModelTable, operations
from tools import cnrcheck


def apply(path: Path, operation: Any, **options: Any) -> int:
    commit = cnrfmt.save if operation.kind == "save" else cnrfmt.append
    return commit(path, operation.tables, **options)


def same_bits(found: Any, expected: Any) -> bool:
    return (
        found.dtype == expected.dtype
        and found.shape == expected.shape
        and found.tobytes() == expected.tobytes()
    )


def check_table(table: cnrfmt.Table, model: ModelTable, random: Random) -> None:
    assert len(table) == len(model.ids)
    assert set(table.columns) == set(model.dtypes)
    for column in model.dtypes:
        whole = model.array(column)
        assert same_bits(table.read(column=column), whole)
        if not len(whole):
            continue
        positions = random.choices(range(len(whole)), k=random.randint(1, 8))
        ids = np.array(model.ids, np.int64)[positions]
        assert same_bits(table.read(ids, column=column), whole[positions])
        a, b = sorted(random.choices(range(-len(whole), len(whole) + 1), k=2))
        step = random.choice([1, 2, -1, -3])
        window = slice(a, b, step) if step > 0 else slice(b, a, step)
        assert same_bits(
            table.read(window, column=column, by="position"), whole[window]
        )
        mask = np.zeros(len(whole), bool)
        mask[positions] = True
        assert same_bits(table.read(mask, column=column), whole[mask])
        out = np.empty_like(whole)
        assert table.read(out=out, column=column) is out
        assert same_bits(out, whole)


def check_checkpoint(
    path: Path, tables: dict[str, ModelTable], random: Random, **options: Any
) -> None:
    with cnrfmt.open(path, **options) as ck:
        assert set(ck) == set(tables)
        for name, model in tables.items():
            check_table(ck[name], model, random)
            if model.rows is None:
                assert ck[name].keys.tolist() == model.ids


def touched(before: ModelTable, after: ModelTable) -> set[int]:
    """The rows that differ, whatever was written; a new column touches those rows that it has values for."""

    def differs(row: int, column: str) -> bool:
        if column not in before.dtypes:
            return column in after.cells.get(row, {})
        return before.array(column, [row]).tobytes() != after.array(column, [row]).tobytes()

    known = set(before.ids)
    return {row for row in after.ids if row not in known or any(differs(row, c) for c in after.dtypes)}


@pytest.mark.parametrize("name", ["model.cnr", "model"])
@given(commits=operations(), seed=st.integers(0, 1 << 32))
def test_read_equals_model(name: str, commits: list[Any], seed: int) -> None:
    random = Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        model = Model()
        for operation in commits:
            version = apply(path, operation, step=len(model.versions), threads=1)
            if operation.kind == "save":
                model.save(version, operation.tables)
                if name.endswith(".cnr"):
                    model.versions = {version: model.versions[version]}
            else:
                model.append(version, operation.tables)
        head = model.versions[model.head]
        for backend in ("mmap", "pread"):
            for verify in ("none", "touched", "all"):
                check_checkpoint(path, head, random, backend=backend, verify=verify)
        with cnrfmt.open(path) as ck:
            assert list(ck.versions) == sorted(model.versions)
            for version in model.versions:
                for table, now in head.items():
                    before = model.versions[version].get(table)
                    changes = ck[table].changed(since=version)
                    expected = set(now.ids) if before is None else touched(before, now)
                    assert expected <= set(changes.rows.tolist())
                    assert set(changes.rows.tolist()) <= set(now.ids)
                    if changes.exact and before is not None:
                        assert set(before.ids) - set(now.ids) <= set(changes.deleted.tolist())
        for version, tables in model.versions.items():
            check_checkpoint(path, tables, random, version=version, threads=1)
        loaded = cnrfmt.load(path, columns=True)
        for table, expected in head.items():
            assert same_bits(loaded[table].values, expected.array("weight"))
        report = cnrfmt.verify(path)
        assert report.findings == [], "\n".join(map(str, report.findings))
        findings = cnrcheck.check_path(str(path))
        assert findings == [], "\n".join(map(str, findings))
        for table, expected in head.items():
            ids, _ = cnrcheck.read_table(str(path), table)
            assert [int(i) for i in ids] == expected.ids
