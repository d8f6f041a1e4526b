"""How training images vary."""

from __future__ import annotations

from pydantic import Field

from vitrail.core.config import Config


class AugmentSettings(Config):
    """How training images are varied; everything at zero leaves them as they are."""

    min_crop_area: float = Field(1.0, gt=0, le=1)
    """Smallest share of the image's area that a random resized crop keeps; 1 crops nothing."""
    shift: int = Field(0, ge=0)
    """Random translation by up to this many pixels, the border padded with zeros after normalisation."""
    flip: bool = False
    """Mirror left and right with probability one half."""
    rotation: float = Field(0.0, ge=0, le=180)
    """Random rotation by up to this many degrees."""
    colour: float = Field(0.0, ge=0, le=1)
    """Strength of random brightness, contrast and saturation changes."""
    erase: float = Field(0.0, ge=0, le=1)
    """Probability of random erasing (Zhong et al. 2020)."""
    mixup: float = Field(0.0, ge=0)
    """Alpha of the beta distribution of mixup (Zhang et al. 2018); 0 switches it off."""
    cutmix: float = Field(0.0, ge=0)
    """Alpha of the beta distribution of CutMix (Yun et al. 2019); 0 switches it off."""
    mix_probability: float = Field(1.0, ge=0, le=1)
    """Probability that a batch is mixed at all, by mixup or CutMix with equal chance if both are on."""


class BoxAugmentSettings(Config):
    """How training images vary together with their boxes; everything at zero leaves them as they are."""

    flip: bool = False
    """Mirror left and right with probability one half."""
    flip_vertical: bool = False
    """Mirror top and bottom with probability one half, where neither is up."""
    scale: float = Field(0.0, ge=0, lt=1)
    """Random scaling by a factor between one minus and one plus this."""
    shift: float = Field(0.0, ge=0, lt=1)
    """Random translation by up to this share of the image's height and width."""
    rotation: float = Field(0.0, ge=0, le=180)
    """Random rotation by up to this many degrees; a box becomes the one around its corners."""
    crop: float = Field(0.0, ge=0, le=1)
    """Probability of a random crop before resizing; boxes are clipped, those with less than a quarter of
    their area left are dropped."""
    colour: float = Field(0.0, ge=0, le=1)
    """Strength of random brightness, contrast and saturation changes."""
    mosaic: float = Field(0.0, ge=0, le=1)
    """Probability that four images are joined to one (Bochkovskiy et al. 2020)."""
