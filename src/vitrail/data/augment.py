"""Augment a batch of normalised images for training: whole-batch tensor operations, no loop over images.

Every function draws from the generator it is given and from nothing else, so a batch is a function of the
generator's seed. Zero is the mean colour after normalisation, and is what is shown beyond the border.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.data.settings import AugmentSettings

ERASED_AREA = (0.02, 1 / 3)  # Zhong et al. 2020, section 3.2: s_l and s_h, as timm and DeiT use them
ERASED_ASPECT = (0.3, 1 / 0.3)  # Zhong et al. 2020, section 3.2: r_1 and r_2
GREY = (0.299, 0.587, 0.114)  # luma weights of ITU-R BT.601

Images = Float[Tensor, "batch 3 height width"]
"""Normalised."""


def augment(images: Images, settings: AugmentSettings, generator: torch.Generator) -> Images:
    """Apply all enabled augmentations of single images to a normalised batch.

    Flip, shift, rotation, colour and erasing, in this order; random crops are the sample source's work and
    mixing is ``mix``.
    """
    if settings.flip:
        images = flip(images, generator)
    if settings.shift:
        images = shift(images, settings.shift, generator)
    if settings.rotation:
        images = rotate(images, settings.rotation, generator)
    if settings.colour:
        images = change_colour(images, settings.colour, generator)
    if settings.erase:
        images = erase(images, settings.erase, generator)
    return images


def flip(images: Images, generator: torch.Generator) -> Images:
    """Flip each image left and right with probability one half."""
    is_flipped = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(is_flipped.to(images.device)[:, None, None, None], images.flip(-1), images)


def shift(images: Images, max_shift: int, generator: torch.Generator) -> Images:
    """Shift each image by up to ``max_shift`` whole pixels along both axes, padded with zeros."""
    batch, _, height, width = images.shape
    offsets = torch.randint(0, 2 * max_shift + 1, (2, batch), generator=generator).to(images.device)
    padded = F.pad(images, (max_shift,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # batch 3 shifts shifts height width
    return windows[torch.arange(batch, device=images.device), :, offsets[0], offsets[1]]


def rotate(images: Images, max_degrees: float, generator: torch.Generator) -> Images:
    """Rotate each image about its centre by up to ``max_degrees`` either way, bilinear, padded with zeros."""
    _, _, height, width = images.shape
    turns = torch.rand(len(images), generator=generator).to(images.device) * 2 - 1
    angle = turns * math.radians(max_degrees)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # grid_sample measures both axes in -1..1, so the rotation is conjugated with the aspect ratio
    rows = [cos, -sin * height / width, zero, sin * width / height, cos, zero]
    matrices = torch.stack(rows, dim=-1).reshape(-1, 2, 3)
    grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid.to(images.dtype), align_corners=False)


def change_colour(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Change brightness, contrast and saturation of each image by up to ``strength``.

    In normalised units: x becomes c (s x + (1 - s) grey(x) - m) + m + b with the image's mean m, contrast
    and saturation factors c, s in 1 +- strength and an offset b in +- strength.
    """
    draws = torch.rand(3, len(images), generator=generator).to(images.device) * 2 - 1
    brightness, contrast, saturation = (draws * strength)[:, :, None, None, None]
    red, green, blue = (images[:, channel : channel + 1] for channel in range(3))
    grey = (red * GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])
    mean = grey.mean(dim=(2, 3), keepdim=True)
    factor = 1 + contrast
    rest = grey * (-saturation * factor) - mean * contrast + brightness  # batch 1 height width
    return torch.addcmul(rest, images, (1 + saturation) * factor)


def erase(images: Images, probability: float, generator: torch.Generator) -> Images:
    """Set one random box of some images to zero, the mean colour.

    Departs from the paper: one draw per image and no second try; a box that is too long for the image is
    clipped to it.

    Paper: Zhong et al. 2020, "Random Erasing Data Augmentation", algorithm 1, variant RE-M.
    """
    batch, _, height, width = images.shape
    draws = torch.rand(5, batch, generator=generator).to(images.device)
    smallest, largest = ERASED_AREA
    area = (smallest + (largest - smallest) * draws[1]) * height * width
    lowest, highest = math.log(ERASED_ASPECT[0]), math.log(ERASED_ASPECT[1])
    aspect = (lowest + (highest - lowest) * draws[2]).exp()
    rows = (area * aspect).sqrt().round().clamp(1, height)
    columns = (area / aspect).sqrt().round().clamp(1, width)
    top = (draws[3] * (height - rows + 1)).floor()
    left = (draws[4] * (width - columns + 1)).floor()
    inside = _inside(top, rows, height)[:, :, None] & _inside(left, columns, width)[:, None, :]
    inside &= (draws[0] < probability)[:, None, None]
    return images.masked_fill(inside[:, None], 0.0)


def mix(
    images: Images,
    targets: Float[Tensor, "batch classes"],
    settings: AugmentSettings,
    generator: torch.Generator,
) -> tuple[Images, Float[Tensor, "batch classes"]]:
    """Mix each image with its neighbour in the batch, by mixup or CutMix, one draw for the whole batch.

    Args:
        images: normalised; the order of the batch is random, which makes the neighbour a random partner.
        targets: class probabilities.
        settings: ``mixup`` and ``cutmix`` are the alphas of the beta distributions; with both on, each has
            an equal chance; with probability ``1 - mix_probability`` nothing is mixed.

    Returns:
        images: the mixed images.
        targets: class probabilities; the partner's share is its share of the pixels.

    Paper: mixup, Zhang et al. 2018, equation 1; CutMix, Yun et al. 2019, equations 1 and 2.
    """
    targets = targets.to(images.dtype)
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    rng = np.random.default_rng(seed)  # torch has no public beta distribution with a generator
    is_mixed = rng.random() < settings.mix_probability
    by_cutmix = bool(settings.cutmix) and (not settings.mixup or rng.random() < 0.5)
    alpha = settings.cutmix if by_cutmix else settings.mixup
    if not is_mixed or not alpha or len(images) < 2:
        return images, targets
    own_share = float(rng.beta(alpha, alpha))
    if by_cutmix:
        top, bottom, left, right = _cutmix_box(images.shape[-2], images.shape[-1], own_share, rng)
        mixed = images.clone()
        mixed[:, :, top:bottom, left:right] = images[:, :, top:bottom, left:right].roll(1, 0)
        own_share = 1 - (bottom - top) * (right - left) / (images.shape[-2] * images.shape[-1])
    else:
        mixed = torch.lerp(images.roll(1, 0), images, own_share)
    return mixed, torch.lerp(targets.roll(1, 0), targets, own_share)


def _cutmix_box(
    height: int, width: int, own_share: float, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Return top, bottom, left, right of a box of the area ``1 - own_share``, clipped at the edges."""
    side = math.sqrt(1 - own_share)
    half_height, half_width = round(height * side) / 2, round(width * side) / 2
    row, column = rng.integers(height + 1), rng.integers(width + 1)
    top, bottom = max(math.ceil(row - half_height), 0), min(math.ceil(row + half_height), height)
    left, right = max(math.ceil(column - half_width), 0), min(math.ceil(column + half_width), width)
    return top, bottom, left, right


def _inside(start: Tensor, length: Tensor, size: int) -> Bool[Tensor, "batch size"]:
    positions = torch.arange(size, device=start.device)
    return (positions >= start[:, None]) & (positions < (start + length)[:, None])
