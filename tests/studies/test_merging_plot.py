from __future__ import annotations

from vitrail.studies.merging import merging_png


def test_the_curve_is_a_picture():
    curves = {"constant": [(1.0, 0.9, 0), (1.3, 0.88, 4)], "decreasing": [(1.0, 0.9, 0), (1.4, 0.85, 4)]}
    png = merging_png(curves, title="a run")
    assert png.startswith(b"\x89PNG")
    assert png != merging_png({"constant": curves["constant"]}, title="a run")
