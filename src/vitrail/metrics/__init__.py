"""Scores of predictions, each checked against the field's own metric libraries."""
