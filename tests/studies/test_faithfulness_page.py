from __future__ import annotations

import numpy as np
import pytest

from vitrail.core.errors import ConfigError
from vitrail.interpret.perturbation import Faithfulness
from vitrail.studies.faithfulness import table_rows, write_faithfulness


@pytest.fixture
def found() -> Faithfulness:
    noise = np.random.default_rng(0).random((5, 3)) / 50
    fast, slow = np.array([[0.9, 0.2, 0.1]]) + noise, np.array([[0.9, 0.8, 0.1]]) + noise
    return Faithfulness(
        deletion={"relevance": fast, "attention": slow, "random": slow + 0.01},
        insertion={"relevance": slow, "attention": fast, "random": fast},
        shares=[0.0, 0.5, 1.0],
        grid=(1, 2),
        filling="blur",
    )


def test_the_page_has_both_plots_and_a_row_for_each_method(found, tmp_path):
    write_faithfulness(tmp_path / "out.html", found, title="Test of <runs>")
    page = (tmp_path / "out.html").read_text()

    assert page.count("<svg") == 2
    assert "Test of &lt;runs&gt;" in page
    assert "5 images, 1 x 2 patches" in page
    assert [row[0] for row in table_rows(found)] == ["class relevance", "attention", "random order"]
    for row in table_rows(found):
        assert all(cell in page for cell in row if cell)


def test_a_method_is_not_held_against_itself(found):
    rows = {row[0]: row for row in table_rows(found)}
    assert rows["random order"][2] == ""
    assert rows["attention"][3] == ""
    assert rows["class relevance"][3].startswith("-0.")


def test_a_picture_is_written_for_its_suffix_and_other_names_are_refused(found, tmp_path):
    write_faithfulness(tmp_path / "out.png", found, title="a")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"ends in \.html or \.png"):
        write_faithfulness(tmp_path / "out.txt", found, title="a")
