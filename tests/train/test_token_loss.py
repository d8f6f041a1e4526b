from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vitrail.train.losses import token_losses


def example(scale: float = 3.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(3, 5, 11, generator=generator) * scale
    targets = torch.randint(11, (3, 5), generator=generator)
    is_token = torch.arange(5) < torch.tensor([5, 2, 4])[:, None]
    return logits, targets, is_token


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("scale", [0.0, 3.0, 200.0])
def test_loss_and_gradient_are_those_of_torch(scale: float, smoothing: float) -> None:
    logits, targets, is_token = example(scale)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()

    total = token_losses(ours, targets, is_token, label_smoothing=smoothing).total
    (total / 7).backward()
    expected = F.cross_entropy(
        theirs.flatten(0, 1),
        targets.masked_fill(~is_token, -100).flatten(),
        ignore_index=-100,
        label_smoothing=smoothing,
        reduction="sum",
    )
    (expected / 7).backward()

    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)


def test_gradient_is_that_of_finite_differences() -> None:
    logits, targets, is_token = example(1.0)
    values = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(
        token_losses(values, targets, is_token, label_smoothing=0.3).total, values
    )
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))

    def plain(place: torch.Tensor) -> torch.Tensor:
        log_probabilities = place.log_softmax(dim=-1)
        wanted = log_probabilities.gather(-1, targets[..., None])[..., 0]
        return -((0.7 * wanted + 0.3 * log_probabilities.mean(dim=-1)) * is_token).sum()

    step = 1e-4 * direction.double()
    slope = (plain(logits.double() + step) - plain(logits.double() - step)) / 2e-4
    assert float((gradient * direction).sum()) == pytest.approx(float(slope), rel=1e-4)


def test_tokens_are_counted_one_by_one() -> None:
    logits, targets, is_token = example()
    losses = token_losses(logits, targets, is_token, label_smoothing=0.1)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(3, 5)
    torch.testing.assert_close(losses.nll, expected * is_token)
    assert torch.equal(losses.is_correct, (logits.argmax(dim=-1) == targets) & is_token)


def test_padding_has_no_gradient_and_no_part_in_the_loss() -> None:
    logits, targets, is_token = example()
    changed = torch.where(is_token[..., None], logits, 7 * logits + 1).requires_grad_()
    total = token_losses(changed, targets, is_token, label_smoothing=0.1).total
    total.backward()
    torch.testing.assert_close(total, token_losses(logits, targets, is_token, label_smoothing=0.1).total)
    assert not changed.grad[~is_token].any()
    assert changed.grad[is_token].any(dim=-1).all()


def test_half_precision_is_summed_in_float32() -> None:
    logits, targets, is_token = example()
    rounded = logits.bfloat16()
    losses = token_losses(rounded.requires_grad_(), targets, is_token, label_smoothing=0.1)
    losses.total.backward()
    assert losses.total.dtype == torch.float32
    assert rounded.grad.dtype == torch.bfloat16
    expected = token_losses(rounded.detach().float(), targets, is_token, label_smoothing=0.1)
    assert losses.total.item() == expected.total.item()


def test_a_second_backward_pass_is_refused() -> None:
    logits, targets, is_token = example()
    total = token_losses(logits.requires_grad_(), targets, is_token).total
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()
