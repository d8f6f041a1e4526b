"""Foundations: errors, settings, durable writes, the hub, boxes; no models."""
