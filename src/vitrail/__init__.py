"""Vitrail."""
