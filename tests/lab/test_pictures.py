"""Pictures of claims: axes that say what they show, and curves that can all be seen."""

from __future__ import annotations

import numpy as np

from vitrail.lab.harness import Progress
from vitrail.lab.permutation import Permutation
from vitrail.lab.receptive_field import ReceptiveField


def test_the_picture_of_receptive_fields_has_whole_layers_and_a_scale_and_hides_no_curve() -> None:
    claim = ReceptiveField(num_seeds=1, depths=(1, 3))

    *maps, curves, beside = claim.draw(claim.run(ignore, seed=0)).axes

    assert len(maps) == 6
    assert beside.child_axes[0].get_xlabel().startswith("gradient of a cell")
    assert curves.get_xticks().tolist() == [1, 3, 20]
    strided, dilated = (line for line in curves.lines if line.get_label() in ("strided", "dilated"))
    np.testing.assert_array_equal(strided.get_ydata(), dilated.get_ydata())
    assert strided.get_linewidth() > 2 * dilated.get_linewidth()


def test_both_bounds_of_the_picture_of_permutations_are_named() -> None:
    claim = Permutation(num_seeds=1)

    (axes,) = claim.draw(claim.run(ignore, seed=0)).axes

    bounds = {line.get_label(): np.asarray(line.get_ydata())[0] for line in axes.lines}
    assert bounds == {"above: the order matters": 1e-3, "below: rounding alone": 1e-10}
    assert axes.get_legend() is not None


def ignore(progress: Progress) -> None:
    """Do nothing with it."""
