"""Class-specific attribution maps of any model, by gradients and by occlusion."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import ConfigError, check_name
from vitrail.interpret.grids import fit_grid, spread_patches
from vitrail.interpret.perturbation import cover, fill_images
from vitrail.interpret.record import uncompiled
from vitrail.interpret.relevance import class_relevance

CLASS_METHODS = ("relevance", "gradient_input", "occlusion", "integrated_gradients")
LONGEST_GRID = 32  # rows or columns of a displayed map
LONGEST_COVERED = 14  # rows or columns; one forward pass per patch
OCCLUSION_BATCH = 32  # images per forward pass
INTEGRATION_STEPS = 32  # Sundararajan et al. 2017, section 5: 20 to 300 steps come within 5 %


@dataclass(frozen=True)
class Attributions:
    """Attribution maps of one image for any class, computed on first request and cached."""

    model: nn.Module
    image: Float[Tensor, "1 channels height width"]
    """Normalised, on the model's device."""
    class_names: tuple[str, ...]
    label: int
    """The default class."""
    _made: dict[tuple[str, int], Tensor] = field(default_factory=dict, init=False)

    def get(self, method: str, class_name: str | None = None) -> Float[Tensor, "rows columns"]:
        """Return the attribution of each patch for a class, on the CPU; negative values speak against it.

        Args:
            method: one of ``CLASS_METHODS``.
            class_name: the default class if None.

        Raises:
            ConfigError: there is no such method or class, the model does not support the method, or a package
                is missing.
        """
        if class_name is not None:
            check_name("class", class_name, self.class_names)
        label = self.label if class_name is None else self.class_names.index(class_name)
        if (method, label) not in self._made:
            self._made[method, label] = self._compute(method, label).cpu()
        return self._made[method, label]

    def _compute(self, method: str, label: int) -> Tensor:
        labels = torch.tensor([label], device=self.image.device)
        size = (self.image.shape[-2], self.image.shape[-1])
        if method == "occlusion":
            return occlusion(self.model, self.image, label, fit_grid(size, LONGEST_COVERED))
        by_gradients = {
            "relevance": class_relevance,
            "gradient_input": gradient_input,
            "integrated_gradients": integrated_gradients,
        }
        check_name("method", method, CLASS_METHODS)
        (found,) = by_gradients[method](self.model, self.image, labels)
        return spread_patches(found, fit_grid(tuple(found.shape), LONGEST_GRID))


def gradient_input(
    model: nn.Module, images: Float[Tensor, "batch channels height width"], labels: Int[Tensor, " batch"]
) -> Float[Tensor, "batch height width"]:
    """Return gradient times input: each pixel's first-order contribution to the score of a class.

    The baseline is the data's mean colour, zero after normalisation. Negative where a pixel speaks against
    the class.

    Paper: Shrikumar et al. 2016, Not Just a Black Box, section 2.

    Args:
        images: normalised, on the model's device.
    """
    with _gradients():
        given = images.detach().clone().requires_grad_()
        scores = model(given).gather(1, labels.clone()[:, None])
        (gradient,) = torch.autograd.grad(scores.sum(), given)
    return (gradient.float() * images.float()).sum(dim=1)


def integrated_gradients(
    model: nn.Module, images: Float[Tensor, "batch channels height width"], labels: Int[Tensor, " batch"]
) -> Float[Tensor, "batch height width"]:
    """Return integrated gradients from the data's mean colour, by captum.

    Paper: Sundararajan, Taly and Yan 2017, Axiomatic Attribution for Deep Networks, equation 3.

    Args:
        images: normalised, on the model's device.

    Raises:
        ConfigError: captum is not installed.
    """
    try:
        from captum.attr import IntegratedGradients
    except ImportError:
        raise ConfigError(
            "integrated gradients need the package captum, which is not installed",
            expected="captum 0.8 or later",
            remedy="pip install 'vitrail[attribution]', or choose gradient_input or occlusion",
        ) from None
    with _gradients():
        method: Any = IntegratedGradients(model)
        given = images.detach().clone()
        found: Tensor = method.attribute(
            given,
            target=labels,
            n_steps=INTEGRATION_STEPS,
            internal_batch_size=max(OCCLUSION_BATCH, len(given)),
        )
    return found.detach().float().sum(dim=1)


def occlusion(
    model: nn.Module, image: Float[Tensor, "1 channels height width"], label: int, grid: tuple[int, int]
) -> Float[Tensor, "rows columns"]:
    """Return the drop of a class's log-probability when each patch alone is covered.

    Paper: Zeiler and Fergus 2014, section 4.2. Departs from the paper: patches do not overlap, and the
    logarithm distinguishes confident predictions.

    Args:
        image: normalised, on the model's device.
        grid: rows and columns; one forward pass per patch.
    """
    num_patches = grid[0] * grid[1]
    covered_with = fill_images(image, "mean")
    falls = []
    with torch.inference_mode():
        whole = model(image).float().log_softmax(dim=-1)[0, label]
        for start in range(0, num_patches, OCCLUSION_BATCH):
            patches = torch.arange(start, min(start + OCCLUSION_BATCH, num_patches), device=image.device)
            is_covered = torch.nn.functional.one_hot(patches, num_patches).bool().unflatten(1, grid)
            images = cover(image.expand(len(patches), -1, -1, -1), covered_with, is_covered)
            falls.append(whole - model(images).float().log_softmax(dim=-1)[:, label])
    return torch.cat(falls).unflatten(0, grid)


@contextmanager
def _gradients() -> Iterator[None]:
    """Enable gradients, whatever the caller's mode, and run compiled code eagerly."""
    with torch.inference_mode(False), torch.enable_grad(), uncompiled():
        yield
