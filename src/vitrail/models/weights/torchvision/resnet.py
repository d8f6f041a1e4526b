"""Residual networks of torchvision, which timm and the original DETR name in the same way."""

from __future__ import annotations

from vitrail.models.weights.timm.resnet import NAMES, entries, uncounted

__all__ = ["IGNORED", "NAMES", "TABLES"]

TABLES = {"resnet": entries}
IGNORED = {"resnet": uncounted}
