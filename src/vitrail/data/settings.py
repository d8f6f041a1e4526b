"""Settings of data that several tasks share: what is read, how it is divided, how images are augmented."""

from __future__ import annotations

from pydantic import Field

from vitrail.core.config import Config


class DataSettings(Config):
    """The source of a data set and its division into splits, for data of any kind."""

    source: str
    """A folder, a file, a Hugging Face data set name or a built-in name."""
    test_fraction: float = Field(0.2, gt=0, lt=1)
    """Share of the samples held out for the final test where the source brings no test split."""
    validation_fraction: float = Field(0.05, ge=0, lt=1)
    """Share of the training samples held out to draw the validation curve; choices are made on them."""
    max_validation: int = Field(1000, ge=0)
    """Upper bound of that share, in samples."""
    split_seed: int = 0
    """Seed of the splits; the training seed does not change them."""


class AugmentSettings(Config):
    """Augmentation of training images; everything at zero leaves them unchanged."""

    min_crop_area: float = Field(1.0, gt=0, le=1)
    """Smallest share of the image's area that a random resized crop keeps; 1 crops nothing."""
    shift: int = Field(0, ge=0)
    """Random translation by up to this many pixels, the border padded with zeros after normalisation."""
    flip: bool = False
    """Flip left and right with probability one half."""
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
