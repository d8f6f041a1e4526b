"""Figures of papers and lectures, computed by the library's own layers; one file has those of a subject.

A file offers them as ``DRAWINGS``, and they are found automatically.
"""

from vitrail.lab.figures.drawing import FIGURES, Drawing

__all__ = ["FIGURES", "Drawing"]
