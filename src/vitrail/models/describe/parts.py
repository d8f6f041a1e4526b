"""The parts of a model: parameters of each, and cost in a forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from vitrail.models.cost import ForwardCost, PartCost
from vitrail.models.describe.cards import AttentionCard, PartCard


def list_modules(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Return the modules of each part of a model, in execution order."""
    parts: dict[str, list[nn.Module]] = {}
    for name, child in model.named_children():
        if name == "stages":
            parts |= {f"stage {index}": [stage] for index, stage in enumerate(child.children(), start=1)}
        elif isinstance(child, nn.ModuleList):
            parts[f"{len(child)} blocks" if name == "blocks" else f"{name}, {len(child)} blocks"] = [*child]
        else:
            parts[name] = [child]
    return parts


def describe_parts(
    model: nn.Module, modules: dict[str, list[nn.Module]], cost: ForwardCost, shapes: Iterable[torch.Size]
) -> Iterator[PartCard]:
    """Yield the parts that have parameters or cost, and what runs outside all parts.

    Args:
        modules: by part.
        shapes: of the feature map of each stage; empty for models without stages.
    """
    left = iter(shapes)
    own = list(model.named_parameters(recurse=False))
    for name, members in modules.items():
        does = cost.parts.get(name, PartCost())
        parameters = sum(parameter.numel() for module in members for parameter in module.parameters())
        shape = next(left, None) if "blocks" in name or name.startswith("stage ") else None
        if shape is not None:
            yield from _describe_own(own)
            own = []
            yield PartCard(
                name=name, parameters=parameters, **does._asdict(), grid=shape[-2:], width=shape[1]
            )
        elif parameters or does.macs:
            yield PartCard(name=name, parameters=parameters, **does._asdict())
    yield from _describe_own(own)
    if "" in cost.parts:
        yield PartCard(name="other", parameters=0, **cost.parts[""]._asdict())


def describe_attention(cost: ForwardCost) -> tuple[AttentionCard, ...]:
    """Return the size of each layer's attention, in execution order."""
    return tuple(
        AttentionCard(
            layer=size.layer,
            heads=size.num_heads,
            windows=size.num_windows,
            queries=size.num_queries,
            keys=size.num_keys,
            elements=size.num_elements,
            global_elements=size.num_global,
        )
        for size in cost.attention
    )


def _describe_own(parameters: list[tuple[str, nn.Parameter]]) -> Iterator[PartCard]:
    """Yield the parameters outside all modules, such as class tokens."""
    for name, parameter in parameters:
        yield PartCard(name=name, parameters=parameter.numel(), macs=0, activations=0)
