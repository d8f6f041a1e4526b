"""The counts of published models, and the criterion that compares them."""

from __future__ import annotations

from typing import Any

from vitrail.lab.harness import Row, rows_of
from vitrail.lab.model_sizes import QUOTED, CountedRow, ModelSizes, QuotedRow


def test_parameters_of_published_tables_are_met_and_a_wrong_one_is_noticed() -> None:
    claim = ModelSizes(parts=("parameters",))
    rows = claim.run(lambda progress: None, seed=0)
    assert claim.judge(rows).verdict == "holds"

    off_by_one_model = [change(row, "ViT-Huge", deviation=-0.5) for row in rows]
    assert claim.judge(off_by_one_model).verdict == "partly"

    off_by_two = [change(row, "ViT-Base", deviation=0.04) for row in off_by_one_model]
    assert claim.judge(off_by_two).verdict == "does not hold"


def test_the_grid_of_56_cells_has_the_published_attention_and_windows_have_less() -> None:
    claim = ModelSizes(parts=("attention",))
    rows = rows_of(claim.run(lambda progress: None, seed=0), CountedRow)

    computed = {row.model: row.counted for row in rows if row.quantity.endswith("as computed")}

    assert computed == {
        "56 x 56 cells, global": 9_834_496,
        "56 x 56 cells, windows of 7 x 7": 64 * 49 * 49,
    }
    assert claim.judge(rows).verdict == "holds"


def test_numbers_that_are_only_quoted_do_not_decide() -> None:
    claim = ModelSizes(parts=("parameters",))
    rows = claim.run(lambda progress: None, seed=0)

    assert len(rows_of(rows, QuotedRow)) == len(QUOTED)
    assert f"{len(QUOTED)} more are only quoted" in claim.judge(rows).measured
    assert all(row.quoted > 0 for row in rows_of(rows, QuotedRow))


def change(row: Any, model: str, **values: object) -> Row:
    """Return the row with other values if it is the model's."""
    return row.model_copy(update=values) if getattr(row, "model", None) == model else row  # type: ignore[no-any-return]
