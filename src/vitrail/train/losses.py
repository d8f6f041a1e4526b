"""Losses that several tasks share: cross entropy of tokens, and rows gathered from all processes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_VALUES = 2**20  # logits that are compared at once: 4 MiB in float32


class TokenLosses(NamedTuple):
    """The losses of a batch of rows of tokens."""

    total: Tensor
    """Smoothed cross entropy, summed over the tokens: a differentiable float32 scalar."""
    nll: Tensor
    """Cross entropy of each token without smoothing; 0 where there is none. Not differentiable."""
    is_correct: Tensor
    """Whether each token is the most probable one; False where there is none."""


def token_losses(
    logits: Float[Tensor, "batch tokens vocabulary"],
    targets: Int[Tensor, "batch tokens"],
    is_token: Bool[Tensor, "batch tokens"],
    *,
    label_smoothing: float = 0.0,
) -> TokenLosses:
    """Compare logits with the tokens that were wanted, in float32.

    With label smoothing s the target distribution is (1 - s) at the wanted token and s / vocabulary added
    everywhere (Szegedy et al. 2016, section 7), as in ``torch.nn.functional.cross_entropy``.

    Args:
        logits: what the model gave for each place.
        targets: the wanted tokens; any token of the vocabulary where there is none.
        is_token: False at padding, which counts nothing.
        label_smoothing: s.
    """
    total, nll, is_correct = _SmoothedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, 1), targets.flatten(), is_token.flatten(), label_smoothing
    )
    return TokenLosses(total, nll.view_as(targets), is_correct.view_as(targets))


class _SmoothedCrossEntropy(torch.autograd.Function):
    """The sum of smoothed cross entropies, whose gradient is made in the forward pass, some rows at a time.

    With p the probabilities, n the logarithm of their divisor and t the target, the loss is
    n - (1 - s) logits[t] - s mean(logits), and its gradient p - s / vocabulary, at t less (1 - s).
    So many rows as lie in the processor's cache are read and written once each; the whole batch in float32
    never exists. The gradient has the type of the logits.
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
    """Return the sum of the smoothed losses, each loss unsmoothed, what is right, and the probabilities."""
    largest, best = logits.max(dim=-1)
    probabilities = logits.softmax(dim=-1)
    # From the largest one, for the wanted token's own probability may be too small for float32.
    log_divisor = largest - probabilities.gather(1, best[:, None])[:, 0].log()
    nll = log_divisor - logits.gather(1, targets[:, None])[:, 0]
    nll = nll.masked_fill(~is_token, 0.0)
    uniform = (log_divisor - logits.mean(dim=-1)).masked_fill(~is_token, 0.0)
    total = (1 - smoothing) * nll.sum() + smoothing * uniform.sum()
    return total, nll, (best == targets) & is_token, probabilities


def _gradient_of_rows(probabilities: Tensor, targets: Tensor, is_token: Tensor, smoothing: float) -> Tensor:
    """Turn probabilities into the gradient of the sum of the losses, in place."""
    probabilities.sub_(smoothing / probabilities.shape[-1])
    wanted = probabilities.new_full((len(targets), 1), smoothing - 1)
    return probabilities.scatter_add_(1, targets[:, None], wanted).mul_(is_token[:, None])


def gather_rows(x: Float[Tensor, "rows dim"]) -> tuple[Float[Tensor, "all_rows dim"], int]:
    """Return the rows of all processes in the order of their ranks, and at which of them the own ones begin.

    Processes may have different numbers of rows. What each process makes of all rows gives gradients to the
    rows of every process: they are added up on the way back, so that a sum of losses over the processes has
    the gradients of that sum. Every process must call this, and differentiate what it made. With one process
    it returns the rows themselves.

    Args:
        x: rows of this process.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return x, 0
    own = torch.tensor([len(x)], device=x.device)
    counts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, own)
    sizes = [int(count) for count in counts]
    gathered: Tensor = _Gather.apply(x, sizes)  # type: ignore[no-untyped-call]
    return gathered, sum(sizes[: dist.get_rank()])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, sizes: list[int]) -> Tensor:
        context.sizes = sizes
        padded = x.new_zeros(max(sizes), x.shape[1])
        padded[: len(x)] = x
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total.split(context.sizes)[dist.get_rank()], None
