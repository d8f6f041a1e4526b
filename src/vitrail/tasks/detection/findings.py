"""Texts of everything that is reported of a detection data set: the table ``findings.toml``."""

from __future__ import annotations

from vitrail.data.findings import FindingTexts

TABLE = FindingTexts(__file__)
TEXTS, finding, listed = TABLE.texts, TABLE.finding, TABLE.listed
