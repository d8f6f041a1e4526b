"""Let some heads of attention add nothing to some tokens, while a model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from vitrail.core.errors import ConfigError, did_you_mean
from vitrail.nn.attention import MultiHeadAttention

CLASS_TOKEN = 0


@contextmanager
def silence_heads(
    model: nn.Module, heads: Mapping[str, Sequence[int]], *, queries: Sequence[int] = (CLASS_TOKEN,)
) -> Iterator[None]:
    """Set what heads found for some tokens to zero, inside the ``with`` block; weights stay as they are.

    Args:
        model: has layers of ``MultiHeadAttention``.
        heads: of each layer, by its dotted name.
        queries: the tokens that they add nothing to; by default the first, the class token.

    Raises:
        ConfigError: there is no such layer, or it has no such head.

    Paper: Hufe et al. 2025 (Dyslexify), circuit ablation.

    Example:
        >>> import torch
        >>> from vitrail.models import build
        >>> model, images = build("vit_nano").eval(), torch.ones(1, 3, 32, 32)
        >>> with silence_heads(model, {"blocks.1.mixer": [0, 2]}, queries=[5]):
        ...     changed = model(images)
        >>> torch.equal(changed, model(images))
        False
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, MultiHeadAttention)}
    with ExitStack() as stack:
        for name, chosen in heads.items():
            if name not in layers:
                raise ConfigError(
                    f"heads of {name!r} were to be silenced",
                    expected="the name of a layer of attention",
                    remedy=did_you_mean(name, layers),
                )
            layer = layers[name]
            if any(not 0 <= head < layer.num_heads for head in chosen):
                raise ConfigError(
                    f"the heads {list(chosen)} of {name!r} were to be silenced",
                    expected=f"numbers from 0 to {layer.num_heads - 1}",
                    remedy="Count the heads of a layer from 0",
                )
            handle = layer.projection.register_forward_pre_hook(_silencer(layer, chosen, queries))
            stack.callback(handle.remove)
        yield


def _silencer(
    layer: MultiHeadAttention, heads: Sequence[int], queries: Sequence[int]
) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
    """Return a hook that stands before the layer's last matrix, where the heads lie side by side."""

    def silence(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        parted = inputs[0].unflatten(-1, (layer.num_heads, layer.head_dim)).clone()  # b n h d
        for query in queries:
            parted[:, query, list(heads)] = 0
        return (parted.flatten(-2),)

    return silence
