"""Comparison of models that label texts, by accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.tasks.classification.comparing import Accuracy


class TextAccuracy(Accuracy):
    """Accuracy over texts or words, and McNemar's test of those on which two models disagree."""

    def shared_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return positions that all mixers support; rotary ones need attention."""
        return {} if "model.name" in settings else {"model.positions": "sinusoidal"}


TEXT_ACCURACY = TextAccuracy()
