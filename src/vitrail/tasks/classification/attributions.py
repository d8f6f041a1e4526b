"""What a class draws from each place of an image, by methods that run the model again when they are asked."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import ConfigError, did_you_mean
from vitrail.interpret.attribution import gradient_input, integrated_gradients, occlusion
from vitrail.interpret.grids import spread_cells
from vitrail.interpret.relevance import class_relevance

CLASS_METHODS = ("relevance", "gradient_input", "occlusion", "integrated_gradients")
LONGEST_GRID = 32  # cells of a map that is looked at
LONGEST_COVERED = 14  # cells of a side, each of them a forward pass


class Attributions:
    """Maps of one image for one class or another; each is computed at the first request, and kept.

    Args:
        model: an image classifier in evaluation mode.
        image: normalised, on the model's device.
        class_names: one for each logit.
        label: number of the class that is meant where none is named.
    """

    def __init__(
        self,
        model: nn.Module,
        image: Float[Tensor, "1 channels height width"],
        *,
        class_names: tuple[str, ...],
        label: int,
    ) -> None:
        self.model, self.image, self.label = model, image, label
        self._class_names = class_names
        self._made: dict[tuple[str, int], Tensor] = {}

    def get(self, method: str, class_name: str | None = None) -> Float[Tensor, "rows columns"]:
        """Return how much a class draws from each cell, on the processor; what is negative speaks against it.

        Args:
            method: one of ``CLASS_METHODS``.
            class_name: the class; None means the most probable one.

        Raises:
            ConfigError: there is no such method or class, the model does not suit the method, or a package is
                missing.
        """
        label = self.label if class_name is None else self._number(class_name)
        if (method, label) not in self._made:
            self._made[method, label] = self._compute(method, label).cpu()
        return self._made[method, label]

    def _compute(self, method: str, label: int) -> Tensor:
        labels = torch.tensor([label], device=self.image.device)
        size = (self.image.shape[-2], self.image.shape[-1])
        if method == "relevance":
            found = class_relevance(self.model, self.image, labels)[0]
            return spread_cells(found, fit_grid((found.shape[0], found.shape[1]), LONGEST_GRID))
        if method == "gradient_input":
            return spread_cells(
                gradient_input(self.model, self.image, labels)[0], fit_grid(size, LONGEST_GRID)
            )
        if method == "integrated_gradients":
            return spread_cells(
                integrated_gradients(self.model, self.image, labels)[0], fit_grid(size, LONGEST_GRID)
            )
        if method == "occlusion":
            return occlusion(self.model, self.image, label, fit_grid(size, LONGEST_COVERED))
        raise ConfigError(
            f"there is no method {method!r}",
            expected=" or ".join(CLASS_METHODS),
            remedy=did_you_mean(method, CLASS_METHODS),
        )

    def _number(self, class_name: str) -> int:
        if class_name not in self._class_names:
            raise ConfigError(
                f"the model knows no class {class_name!r}",
                expected="one of its classes, as vitrail predict names them",
                remedy=did_you_mean(class_name, self._class_names),
            )
        return self._class_names.index(class_name)


def fit_grid(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """Return the finest grid of squares of whole cells or pixels with no more than that many to a side."""
    side = -(-max(size) // longest)
    return -(-size[0] // side), -(-size[1] // side)
