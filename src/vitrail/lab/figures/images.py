"""An image as attention sees it: cut into patches, and divided by windows."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageOps
from pydantic import Field

from vitrail.core.config import ImageSize
from vitrail.core.errors import ConfigError
from vitrail.data.images import read_image
from vitrail.lab.figures.drawing import Drawing, Drawn
from vitrail.lab.figures.masks import attended_regions
from vitrail.lab.small_clip import draw_shape, to_pixels
from vitrail.nn.patches import split_patches
from vitrail.nn.windows import fit_windows
from vitrail.report.plots import white_figure
from vitrail.report.tiles import set_in_rows, show_tiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_IN_ROW, MOST_NUMBERED = 28, 49
BORDER = "#d55e00"  # Okabe and Ito 2008, vermilion


def open_square(path: Path | None, size: tuple[int, int]) -> Image.Image:
    """Return an image cropped and resized to a height and width; without a path, a drawn one."""
    image = draw_shape("house", "blue", Random(3), size=max(size)) if path is None else read_image(path)
    return ImageOps.fit(image, (size[1], size[0]), Image.Resampling.BICUBIC)


class OnImage(Drawing):
    """A figure of an image that is cut into patches."""

    image: Path | None = None
    """A file; without one, a drawn house."""
    image_size: ImageSize = (224, 224)
    """Height and width that the image is resized to, in pixels."""


class Patches(OnImage):
    """The sequence that a ViT reads."""

    name = "patches"
    shows = "An image, its patches, and the sequence that they become"
    source = "Dosovitskiy et al. 2021, section 3.1, figure 1"

    patch_size: int = Field(default=56, ge=1)
    """Height and width of a patch in pixels."""

    def draw(self) -> Drawn:
        rows, columns = check_divides(self.image_size, self.patch_size)
        image = open_square(self.image, self.image_size)
        patches = split_patches(to_pixels([image]).float() / 255, (self.patch_size, self.patch_size))[0]
        pixels = patches.unflatten(1, (3, self.patch_size, self.patch_size)).movedim(1, -1).numpy()
        opaque = np.concatenate((pixels, np.ones_like(pixels[..., :1])), axis=-1)
        count, in_row = len(opaque), min(len(opaque), MOST_IN_ROW)
        lines, gap = -(-count // in_row), max(1, self.patch_size // 8)
        figure = white_figure(9.5, 4.9 + 9.5 / in_row * lines, "")
        panes = figure.subplot_mosaic("AB;CC", height_ratios=(4.4, 9.5 / in_row * lines))
        panes["A"].imshow(image)
        panes["A"].set_axis_off()
        draw_grid(panes["A"], (rows, columns), self.patch_size)
        show_tiles(panes["B"], set_in_rows(opaque, columns, gap=gap))
        show_tiles(panes["C"], set_in_rows(opaque, in_row, gap=gap))
        for number in range(count if count <= MOST_NUMBERED else 0):
            place = (number % in_row * (self.patch_size + gap), number // in_row * (self.patch_size + gap))
            panes["C"].annotate(f"{number + 1}", place, (2, -9), textcoords="offset points", fontsize=7)
        width = 3 * self.patch_size**2
        panes["A"].set_title(f"{image.width} x {image.height} pixels", fontsize=10)
        panes["B"].set_title(
            f"{rows} x {columns} patches of {self.patch_size} x {self.patch_size}", fontsize=10
        )
        panes["C"].set_title(
            f"a sequence of {count} vectors with 3 x {self.patch_size}^2 = {width:,} numbers", fontsize=10
        )
        return Drawn(figure)


class WindowsOnImage(OnImage):
    """Where Swin's windows lie."""

    name = "windows"
    shows = "Windows on an image, plain (W-MSA) and shifted (SW-MSA): patches inside a border see each other"
    source = "Liu et al. 2021 (Swin), section 3.2, figure 2"

    patch_size: int = Field(default=8, ge=1)
    """Pixels of a patch: 4, 8, 16 and 32 in the stages of Swin."""
    window: ImageSize = (7, 7)
    """Rows and columns of a window."""

    def draw(self) -> Drawn:
        grid = check_divides(self.image_size, self.patch_size)
        image = open_square(self.image, self.image_size)
        figure = white_figure(9.5, 5.2 * image.height / image.width, "")
        kinds = {"windows": False, "shifted windows": True}
        for axes, (title, shifted) in zip(figure.subplots(1, 2), kinds.items(), strict=True):
            windows = fit_windows(grid, self.window, shifted=shifted)
            axes.imshow(image)
            axes.set_axis_off()
            axes.set_title(f"{title} of {windows.size[0]} x {windows.size[1]} patches", fontsize=10)
            draw_grid(axes, grid, self.patch_size)
            draw_borders(axes, attended_regions(windows), self.patch_size)
        return Drawn(figure)


def check_divides(image_size: tuple[int, int], patch_size: int) -> tuple[int, int]:
    """Return the grid of patches.

    Raises:
        ConfigError: the patches do not divide the image, or are larger than it.
    """
    if any(length % patch_size or not length for length in image_size):
        raise ConfigError(
            f"patches of {patch_size} pixels for an image of {image_size[0]}x{image_size[1]}",
            expected="a patch size that divides height and width",
            remedy="Change image_size or patch_size with --set",
        )
    return image_size[0] // patch_size, image_size[1] // patch_size


def draw_grid(axes: Axes, grid: tuple[int, int], patch_size: int) -> None:
    """Draw the edges of all patches."""
    style: dict[str, Any] = {"color": "white", "linewidth": 0.5, "alpha": 0.7}
    for row in range(1, grid[0]):
        axes.axhline(row * patch_size - 0.5, **style)
    for column in range(1, grid[1]):
        axes.axvline(column * patch_size - 0.5, **style)


def draw_borders(axes: Axes, regions: torch.Tensor, patch_size: int) -> None:
    """Draw the edges between patches of different regions, and around the image."""
    framed = torch.nn.functional.pad(regions, (1, 1, 1, 1), value=-1)
    style: dict[str, Any] = {"color": BORDER, "linewidth": 2.0}
    for row, column in (framed[1:, 1:-1] != framed[:-1, 1:-1]).nonzero().tolist():
        edge = [column * patch_size - 0.5, (column + 1) * patch_size - 0.5]
        axes.plot(edge, [row * patch_size - 0.5] * 2, **style)
    for row, column in (framed[1:-1, 1:] != framed[1:-1, :-1]).nonzero().tolist():
        edge = [row * patch_size - 0.5, (row + 1) * patch_size - 0.5]
        axes.plot([column * patch_size - 0.5] * 2, edge, **style)


DRAWINGS = (Patches(), WindowsOnImage())
