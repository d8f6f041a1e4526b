"""Interpretability: recording, attributing and drawing attention."""

from vitrail.interpret.record import AttentionMap, AttentionSteps, has_attention, record_any, record_attention

__all__ = ["AttentionMap", "AttentionSteps", "has_attention", "record_any", "record_attention"]
