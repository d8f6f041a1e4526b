"""Token mixers: alternatives to self-attention inside a block.

Every file of this folder is one paper's, and its ``MIXERS`` are registered automatically. A mixer is called
as ``mixer(x, may_attend=None, grid=None)`` and returns new tokens of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from vitrail.core.registry import Registry
from vitrail.nn.mixers.contract import MixerShape

__all__ = ["MIXERS", "MixerShape", "build_mixer"]

MixerFactory = Callable[[MixerShape], nn.Module]


MIXERS: Registry[MixerFactory] = Registry("mixer", __name__, lambda module: getattr(module, "MIXERS", {}))
"""Factories of token mixers by name."""


def build_mixer(name: str, shape: MixerShape) -> nn.Module:
    """Return a new mixer for tokens of that shape.

    Raises:
        ConfigError: there is no mixer of that name, or it does not fit that shape.
    """
    return MIXERS[name](shape)
