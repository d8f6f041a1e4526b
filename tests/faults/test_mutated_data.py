"""Damaged images, annotations, tables and texts are read or refused; the program beside runs longer."""

from __future__ import annotations

import pytest

from faults.mutating_data import READERS, targets_of
from faults.mutating_models import faults_of, run

NEEDS = {"table.parquet": "pyarrow", "yolo.yaml": "yaml"}


@pytest.mark.parametrize("reader", READERS)
def test_damaged_data_is_read_or_refused(reader: str) -> None:
    pytest.importorskip(NEEDS.get(reader, "PIL"))

    most = 4 if reader == "mat" else 24  # a MATLAB file takes half a second: it has a process of its own

    found = run(reader, seconds=20, most=most, targets_of=targets_of)

    assert not faults_of(found), found
    assert found["refused"] + found["read"] == most
