"""What a model looks at: recording, attributing and drawing attention."""

from vitrail.interpret.record import AttentionMap, record_attention

__all__ = ["AttentionMap", "record_attention"]
