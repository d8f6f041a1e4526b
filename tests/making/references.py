"""Models of other libraries beside ours with the same weights, and what must be equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.models import MODELS, build
from vitrail.models.weights.conversion import SOURCES
from vitrail.models.weights.table import Entry, to_ours, to_theirs

TOLERANCE = 1e-4  # of logits of a scale of about one, in float32


def key_table(source: str, config: Any) -> list[Entry]:
    return SOURCES[source].table(config)


def published_names(source: str, *families: str) -> dict[str, str]:
    """Return the published architectures of some families, and ours."""
    names = SOURCES[source].names
    return {theirs: ours for theirs, ours in names.items() if MODELS[ours].family in families}


def build_ours(source: str, config: Any, reference: nn.Module) -> nn.Module:
    """Return our model with the weights of a reference, in evaluation mode."""
    ignored = SOURCES[source].ignored.get(config.family, ())
    model: nn.Module = config.build().eval()
    model.load_state_dict(to_ours(key_table(source, config), reference.state_dict(), ignored=ignored))
    return model


def assert_same(
    results: Iterable[Tensor], expected: Iterable[Tensor], *, tolerance: float = TOLERANCE, scale: float = 3
) -> None:
    """Compare logits, the first result, which must not be far from one, and feature maps or tokens."""
    (logits, *maps), (wanted, *wanted_maps) = results, expected
    assert 0.3 < wanted.std() < scale
    assert (logits - wanted).abs().max() <= tolerance
    for each, wanted_map in zip(maps, wanted_maps, strict=True):
        torch.testing.assert_close(each, wanted_map, rtol=tolerance, atol=tolerance)


def assert_same_gradients(
    source: str, model: nn.Module, reference: nn.Module, *, rtol: float, atol: float, by_scale: bool = False
) -> None:
    """Compare the gradients of all parameters; ``by_scale``, ``atol`` is a share of the largest of each."""
    is_statistic = ("running_mean", "running_var", "num_batches_tracked")
    table = [each for each in key_table(source, model.config) if not each.ours[0].endswith(is_statistic)]
    wanted = to_ours(table, {name: each.grad for name, each in reference.named_parameters()})
    for name, parameter in model.named_parameters():
        scale = float(wanted[name].abs().max())
        assert scale > 0, name
        allowed = atol * scale if by_scale else atol
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=rtol, atol=allowed, msg=name)


def assert_reversible(source: str, config: Any, state: dict[str, Tensor]) -> None:
    """Convert a published state dict to ours and back."""
    table = key_table(source, config)
    back = to_theirs(table, to_ours(table, state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())


def assert_same_shapes(source: str, reference: nn.Module, name: str, **changes: object) -> None:
    """Compare the names and shapes of all tensors of both sides; both on the meta device."""
    model = build(name, **changes)
    table = key_table(source, model.config)
    ours = to_ours(table, reference.state_dict())
    pairs = (ours, model.state_dict()), (to_theirs(table, ours), reference.state_dict())
    for state, expected in pairs:
        assert {name: tensor.shape for name, tensor in state.items()} == {
            name: tensor.shape for name, tensor in expected.items()
        }
