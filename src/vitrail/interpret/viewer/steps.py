"""One head of attention step by step, as matrices with the names of their tokens."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vitrail.interpret.record import AttentionMap
from vitrail.report.tiles import Matrix


def steps_matrices(
    recorded: AttentionMap,
    head: int,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    rows: Sequence[int] | None = None,
    columns: Sequence[int] | None = None,
) -> tuple[Matrix, ...]:
    """Return X, Q, K, V, scores, scaled scores, bias, mask, softmax and Z of a head, of the first sample.

    Steps that the layer does not have are left out, such as the scores of a mixer.

    Args:
        recorded: with ``steps``.
        rows, columns: indices of the queries and keys shown; None shows all.
    """
    steps = recorded.steps
    assert steps is not None, "recorded with keep_qkv"
    rows = range(len(queries)) if rows is None else rows
    columns = range(len(keys)) if columns is None else columns
    asking, asked = [queries[row] for row in rows], [keys[column] for column in columns]
    scores, pairs = steps.scores, (*recorded.weights.shape[:2], len(queries), len(keys))
    found: list[Matrix] = []

    def show(name: str, values: Tensor | None, index: Sequence[int], names: Sequence[str]) -> None:
        # Sampled attention has weights for more positions than values.
        if values is not None and max(index) < values.shape[-2]:
            of_head = values[0, head] if values.ndim == 4 else values[0]
            found.append(Matrix(name, of_head[list(index)].cpu().numpy(), names))

    def show_pairs(name: str, values: Tensor | None) -> None:
        if values is not None:
            of_head = values.expand(pairs)[0, head][list(rows)][:, list(columns)]
            found.append(Matrix(name, of_head.cpu().numpy(), asking, asked))

    show("X", steps.x, rows, asking)
    show("X of the keys", steps.context, columns, asked)
    show("Q", steps.query, rows, asking)
    show("K", steps.key, columns, asked)
    show("V", steps.value, columns, asked)
    show_pairs("scores", scores)
    show_pairs(f"scaled by {steps.scale:.3g}", steps.scaled_scores)
    show_pairs("bias", steps.bias)
    show_pairs("mask", steps.may_attend)
    hidden = f", {len(columns)} of {len(keys)} keys" if len(columns) < len(keys) else ""
    show_pairs("weights" if scores is None else f"softmax{hidden}", recorded.weights)
    show("Z", steps.result, rows, asking)
    return tuple(found)
