"""The card of a named model: its parts, what a forward pass costs at any size, and whose weights it takes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from vitrail.config import Config
from vitrail.cost import ForwardCost, PartCost, count_forward, count_parameters, feature_shapes
from vitrail.errors import ConfigError
from vitrail.models import MODELS, build
from vitrail.models.contract import ImageModelConfig
from vitrail.weights.conversion import SOURCES


class PartCard(Config):
    """One part of a model."""

    name: str
    """Name of the part."""
    parameters: int
    """Number of parameters."""
    macs: int
    """Multiply-accumulates of convolutions and matrix products for one image."""
    activations: int
    """Elements written by convolutions, linear layers and attention for one image."""
    grid: tuple[int, int] | None = None
    """Rows and columns of the cells that a stage leaves; null for other parts."""
    width: int | None = None
    """Channels of each cell of a stage; null for other parts."""


class AttentionCard(Config):
    """The matrix of one layer's attention for one image; each head has one."""

    layer: str
    """Dotted name of the layer."""
    heads: int
    """Number of heads."""
    windows: int
    """Parts of the image that are attended separately; 1 where it is not cut."""
    queries: int
    """Asking tokens of a window, or of the image."""
    keys: int
    """Answering tokens of a window, or of the image."""
    elements: int
    """Elements of one head's matrices as computed: windows x queries x keys."""
    global_elements: int
    """Elements of one head's matrix if every token of the layer's grid saw every other."""


class Card(Config):
    """What there is to know about a model before it is used."""

    name: str
    """Name of the model."""
    family: str
    """Name of its family."""
    paper: str
    """Authors and year of what the family follows."""
    image_size: tuple[int, int]
    """Height and width in pixels that the figures are for."""
    native_size: tuple[int, int]
    """Height and width in pixels that the model is made for."""
    min_size: int
    """The smallest height and width in pixels."""
    num_classes: int
    """Number of logits."""
    parameters: int
    """Number of parameters."""
    macs: int
    """Multiply-accumulates of convolutions and matrix products for one image."""
    activations: int
    """Elements written by convolutions, linear layers and attention for one image."""
    weight_bytes: int
    """Bytes of all parameters in float32."""
    peak_bytes: int
    """The most bytes that weights and intermediate results of a forward pass of one image take at one time
    in float32; estimated from the shapes of all tensors, without what kernels take for themselves."""
    parts: tuple[PartCard, ...]
    """From the image to the logits."""
    attention: tuple[AttentionCard, ...]
    """In the order in which the layers run; empty where there is no attention."""
    position_policy: str
    """How the model knows where a token stands, and what happens to it at another size."""
    size_policy: str
    """What becomes of an image that does not divide evenly."""
    weights: dict[str, tuple[str, ...]]
    """Published architectures whose weights the model takes, by their source."""


def describe(name: str, *, size: int | tuple[int, int] | None = None) -> Card:
    """Return the card of a model; its figures are for one image, and nothing is computed for them.

    Args:
        name: a name that ``list_models`` returns.
        size: height and width of the image in pixels, one number for a square; by default the size that
            the model is made for.

    Raises:
        ConfigError: there is no such model, or the size is smaller than one patch.

    Example:
        >>> card = describe("vit_s16", size=384)
        >>> card.parameters, card.attention[0].elements
        (22050664, 332929)
    """
    config = MODELS[name]
    assert isinstance(config, ImageModelConfig), f"{name} is no image model"
    height, width = config.image_size if size is None else (size, size) if isinstance(size, int) else size
    if min(height, width) < config.min_size:
        raise ConfigError(
            f"{name} was to be described for images of {height}x{width} pixels",
            expected=f"at least {config.min_size}x{config.min_size}",
            remedy="Give a larger size",
        )
    with torch.device("meta"):
        model = build(name).eval()
        images = torch.zeros(1, config.num_channels, height, width)
    modules = _list_modules(model)
    cost = count_forward(model, images, modules)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Card(
        name=name,
        family=config.family,
        paper=config.paper,
        image_size=(height, width),
        native_size=config.image_size,
        min_size=config.min_size,
        num_classes=config.num_classes,
        parameters=parameters,
        macs=sum(part.macs for part in cost.parts.values()),
        activations=sum(part.activations for part in cost.parts.values()),
        weight_bytes=sum(parameter.nbytes for parameter in model.parameters()),
        peak_bytes=cost.peak_bytes,
        parts=tuple(_describe_parts(model, images, modules, cost)),
        attention=_describe_attention(cost),
        position_policy=config.position_policy,
        size_policy=config.size_policy,
        weights=published_weights(name),
    )


def count_models() -> Iterator[tuple[str, int]]:
    """Yield the name of each model with its number of parameters, one family after the other."""
    for name in sorted(MODELS, key=lambda name: (MODELS[name].family, name)):
        yield name, count_parameters(MODELS[name].build)


def list_cards() -> Iterator[dict[str, object]]:
    """Yield what the list of models shows of each, as plain JSON values."""
    for name, parameters in count_models():
        config = MODELS[name]
        settings = config.model_dump(mode="json")
        yield {
            "name": name,
            "family": config.family,
            "paper": config.paper,
            "parameters": parameters,
            "image_size": settings["image_size"],
        }


def published_weights(name: str) -> dict[str, tuple[str, ...]]:
    """Return the published architectures whose weights a model takes, by their source."""
    found = {
        source: tuple(sorted(theirs for theirs, ours in SOURCES[source].names.items() if ours == name))
        for source in SOURCES
    }
    return {source: names for source, names in found.items() if names}


def parse_size(text: str) -> tuple[int, int]:
    """Read ``384`` or ``384x512`` as height and width.

    Raises:
        ConfigError: the text is neither.

    Example:
        >>> parse_size("384x512")
        (384, 512)
    """
    found = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", text.strip())
    if found is None:
        raise ConfigError(
            f"the size {text!r}",
            expected="one number of pixels, or height x width, such as 384 or 384x512",
            remedy="Write the size without spaces",
        )
    return int(found[1]), int(found[2] or found[1])


def _list_modules(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Return the modules of each part, in the order in which they run."""
    parts: dict[str, list[nn.Module]] = {}
    for name, child in model.named_children():
        if name == "stages":
            parts |= {f"stage {index}": [stage] for index, stage in enumerate(child.children(), start=1)}
        elif isinstance(child, nn.ModuleList):
            parts[f"{len(child)} {name}"] = list(child)
        else:
            parts[name] = [child]
    return parts


def _describe_parts(
    model: nn.Module, images: Tensor, modules: dict[str, list[nn.Module]], cost: ForwardCost
) -> Iterator[PartCard]:
    """Yield the parts that have parameters or do something, and what is done outside of all parts."""
    shapes = iter(feature_shapes(model, images))
    own = list(model.named_parameters(recurse=False))
    for name, members in modules.items():
        does = cost.parts.get(name, PartCost())
        parameters = sum(parameter.numel() for module in members for parameter in module.parameters())
        if "blocks" in name or name.startswith("stage "):
            yield from _describe_own(own)
            own = []
            shape = next(shapes)
            yield PartCard(
                name=name, parameters=parameters, **does._asdict(), grid=shape[-2:], width=shape[1]
            )
        elif parameters or does.macs:
            yield PartCard(name=name, parameters=parameters, **does._asdict())
    yield from _describe_own(own)
    if "" in cost.parts:
        yield PartCard(name="other", parameters=0, **cost.parts[""]._asdict())


def _describe_own(parameters: list[tuple[str, nn.Parameter]]) -> Iterator[PartCard]:
    """Yield the parameters that are part of no module, such as class tokens."""
    for name, parameter in parameters:
        yield PartCard(name=name, parameters=parameter.numel(), macs=0, activations=0)


def _describe_attention(cost: ForwardCost) -> tuple[AttentionCard, ...]:
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
