"""Interpretability: recording, attributing and drawing attention."""

from vitrail.interpret.record import AttentionMap, has_attention, record_attention

__all__ = ["AttentionMap", "has_attention", "record_attention"]
