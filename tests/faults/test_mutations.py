"""Damaged weights, models and exports are read or refused; the program beside runs longer."""

from __future__ import annotations

import pytest

from faults.mutating_models import READERS, faults_of, run

NEEDS = {"package.onnx": "onnxscript", "package.openvino": "openvino", "hub.marian": "sentencepiece"}


@pytest.mark.parametrize("reader", READERS)
def test_damaged_files_are_read_or_refused(reader: str) -> None:
    pytest.importorskip(NEEDS.get(reader, "transformers"))

    found = run(reader, seconds=20, most=24)

    assert not faults_of(found), found
    assert found["refused"] > 5
