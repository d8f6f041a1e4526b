"""A web server for trained models: dynamic batching, explanations, and a demo page."""

from vitrail.serve.running import serve
from vitrail.serve.settings import ServeSettings

__all__ = ["ServeSettings", "serve"]
