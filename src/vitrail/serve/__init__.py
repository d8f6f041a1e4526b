"""Trained models behind a web server: dynamic batches, explanations, and a page to try them on."""

from vitrail.serve.running import serve
from vitrail.serve.settings import ServeSettings

__all__ = ["ServeSettings", "serve"]
