"""Executable claims: what papers say about attention, measured again; one file of this folder is one claim.

A file offers its claim as ``CLAIM`` and is found by itself; the claim has the file's name.
"""

from vitrail.lab.harness import CLAIMS, Claim

__all__ = ["CLAIMS", "Claim"]
