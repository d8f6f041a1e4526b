"""Executable claims: published statements about attention, measured again; one file is one claim.

A file offers its claim as ``CLAIM``, which has the file's name, and is found automatically.
"""

from vitrail.lab.harness import CLAIMS, Claim

__all__ = ["CLAIMS", "Claim"]
