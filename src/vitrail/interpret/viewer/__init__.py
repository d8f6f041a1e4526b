"""Viewer of attention maps."""
