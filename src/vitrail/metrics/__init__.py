"""Scores over the field's own metric libraries, imported only when a score is asked for."""
