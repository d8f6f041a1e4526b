"""Token mixers: what a block may hold in the place of self-attention.

Every file of this folder is one paper's, and its ``MIXERS`` are found by themselves. A mixer is called as
``mixer(x, may_attend=None, grid=None)`` and returns new tokens of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

from torch import nn

from vitrail.core.registry import Registry
from vitrail.nn.mixers.contract import MixerShape

__all__ = ["MIXERS", "MixerShape", "build_mixer"]

MixerFactory = Callable[[MixerShape], nn.Module]


def _mixers(module: ModuleType) -> Mapping[str, MixerFactory]:
    return getattr(module, "MIXERS", {})


MIXERS: Registry[MixerFactory] = Registry("mixer", __name__, _mixers)
"""Every token mixer by its name, as what makes it of a shape."""


def build_mixer(name: str, shape: MixerShape) -> nn.Module:
    """Return a new mixer for tokens of that shape.

    Args:
        name: a name of ``MIXERS``.

    Raises:
        ConfigError: there is no mixer of that name, or it cannot be made for that shape.
    """
    return MIXERS[name](shape)
