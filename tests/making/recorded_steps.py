"""What must be true of recorded steps, of whatever layer."""

from __future__ import annotations

import torch

from vitrail.interpret import AttentionMap


def assert_steps_lead_to_the_map(recorded: AttentionMap) -> None:
    """Compute the weights from queries and keys, and the result from weights and values."""
    steps = recorded.steps
    assert steps is not None, recorded
    weights = steps.masked_scores.softmax(dim=-1)
    torch.testing.assert_close(weights, recorded.weights, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(steps.result, weights @ steps.value, rtol=1e-4, atol=1e-5)
    assert steps.query.shape[:-1] == weights.shape[:-1]
    assert steps.key.shape[2] == steps.value.shape[2] == weights.shape[-1]
