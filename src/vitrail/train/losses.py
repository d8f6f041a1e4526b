"""Losses shared by tasks: token cross entropy, and rows gathered from all processes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_VALUES = 2**20  # logits per chunk: 4 MiB in float32


class TokenLosses(NamedTuple):
    """The losses of a batch of token sequences."""

    total: Tensor
    """Smoothed cross entropy summed over the tokens: a differentiable float32 scalar."""
    nll: Tensor
    """Unsmoothed log loss of each token, 0 at padding; not differentiable."""
    is_correct: Tensor
    """Whether each token is the most probable one; False at padding."""


def token_losses(
    logits: Float[Tensor, "batch tokens vocabulary"],
    targets: Int[Tensor, "batch tokens"],
    is_token: Bool[Tensor, "batch tokens"],
    *,
    label_smoothing: float = 0.0,
) -> TokenLosses:
    """Compute cross entropy, log loss and accuracy of tokens in float32.

    With label smoothing s the target distribution is (1 - s) at the target token plus s / vocabulary
    everywhere (Szegedy et al. 2016, section 7), as in ``torch.nn.functional.cross_entropy``.

    Args:
        targets: token ids; arbitrary at padding.
        is_token: False at padding, which is ignored.
    """
    total, nll, is_correct = _SmoothedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, 1), targets.flatten(), is_token.flatten(), label_smoothing
    )
    return TokenLosses(total, nll.view_as(targets), is_correct.view_as(targets))


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Summed smoothed cross entropy whose gradient is computed chunk-wise in the forward pass.

    With p the probabilities, z the log partition function and t the target, the loss is z - (1 - s) logits[t]
    - s mean(logits), and its gradient p - s / vocabulary, minus (1 - s) at t. Each chunk fits in the CPU's
    cache and is read and written once; the whole batch never exists in float32. The gradient has the dtype of
    the logits.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, is_token: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        totals, losses, matches = [], [], []
        size = max(1, CHUNK_VALUES // logits.shape[-1])
        for start in range(0, len(logits), size):
            rows = slice(start, start + size)
            total, nll, is_correct, probabilities = _losses_of_rows(
                logits[rows].float(), targets[rows], is_token[rows], smoothing
            )
            totals.append(total)
            losses.append(nll)
            matches.append(is_correct)
            if gradient is not None:
                gradient[rows] = _gradient_of_rows(probabilities, targets[rows], is_token[rows], smoothing)
        ctx.save_for_backward(gradient)
        nll, is_correct = torch.cat(losses), torch.cat(matches)
        ctx.mark_non_differentiable(nll, is_correct)
        return torch.stack(totals).sum(), nll, is_correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor, *_: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(grad_total), None, None, None  # in place: a second backward pass is an error


def _losses_of_rows(
    logits: Tensor, targets: Tensor, is_token: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the summed smoothed loss, each unsmoothed loss, what is correct, and the probabilities."""
    largest, best = logits.max(dim=-1)
    probabilities = logits.softmax(dim=-1)
    # Relative to the largest logit: the target's own probability may underflow in float32.
    log_divisor = largest - probabilities.gather(1, best[:, None])[:, 0].log()
    nll = log_divisor - logits.gather(1, targets[:, None])[:, 0]
    nll = nll.masked_fill(~is_token, 0.0)
    uniform = (log_divisor - logits.mean(dim=-1)).masked_fill(~is_token, 0.0)
    total = (1 - smoothing) * nll.sum() + smoothing * uniform.sum()
    return total, nll, (best == targets) & is_token, probabilities


def _gradient_of_rows(probabilities: Tensor, targets: Tensor, is_token: Tensor, smoothing: float) -> Tensor:
    """Turn probabilities into the gradient of the summed loss, in place."""
    probabilities.sub_(smoothing / probabilities.shape[-1])
    wanted = probabilities.new_full((len(targets), 1), smoothing - 1)
    return probabilities.scatter_add_(1, targets[:, None], wanted).mul_(is_token[:, None])


def gather_rows(x: Float[Tensor, "rows dim"]) -> tuple[Float[Tensor, "all_rows dim"], int]:
    """Return the rows of all processes by rank, and the index of this process's first row.

    Processes may have different numbers of rows. Gradients from every process's use of the gathered rows are
    summed, so that a sum of losses over the processes has the right gradient. Every process must call this
    and backpropagate. A single process gets its rows back.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return x, 0
    from torch.distributed.nn.functional import all_gather

    own = torch.tensor([len(x)], device=x.device)
    counts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, own)
    sizes = [int(count) for count in counts]
    parts = all_gather(F.pad(x, (0, 0, 0, max(sizes) - len(x))))
    gathered = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
    return gathered, sum(sizes[: dist.get_rank()])
