"""Executable claims: what papers say of attention, measured anew; one file of this folder is one claim.

A file offers its claim as ``CLAIM``, and is found by itself; the name of the claim is the file's.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from vitrail.core.registry import Registry
from vitrail.lab.contract import Claim

__all__ = ["CLAIMS", "Claim"]


def _collect(module: ModuleType) -> Mapping[str, Claim[Any]]:
    found: Claim[Any] | None = getattr(module, "CLAIM", None)
    return {} if found is None else {found.name: found}


CLAIMS: Registry[Claim[Any]] = Registry("claim", __name__, _collect)
"""Every claim by its name."""
