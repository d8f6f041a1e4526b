"""Numbers that stand in papers: those that can be counted anew, and those that can only be quoted."""

from __future__ import annotations

from typing import NamedTuple

from vitrail.models import MODELS
from vitrail.models.bit import BiTConfig
from vitrail.models.contract import ModelConfig, TranslationModelConfig
from vitrail.models.vit import ViTConfig

VIT, TRANSFORMER = "Dosovitskiy et al. 2021", "Vaswani et al. 2017"


class PublishedParameters(NamedTuple):
    """How large a model is said to be."""

    table: str
    model: str
    config: ModelConfig
    millions: float


class PublishedCompute(NamedTuple):
    """What the pre-training of an image model on JFT-300M is said to have taken."""

    model: str
    config: ModelConfig
    epochs: int
    exaflops: float


class PublishedTraining(NamedTuple):
    """What the training of a translator is said to have taken."""

    model: str
    config: TranslationModelConfig
    steps: int
    hours: float
    flops: float


class Quoted(NamedTuple):
    """What can be looked up only: scores, and costs of models that are not here or are not told in full."""

    table: str
    model: str
    quantity: str
    value: float


def _translator(name: str) -> TranslationModelConfig:
    """Return a model with the vocabulary of the paper's section 5.1, about 37,000 shared subwords."""
    changes = {"source_vocabulary_size": 37_000, "target_vocabulary_size": 37_000}
    config = MODELS[name].with_changes(changes)
    assert isinstance(config, TranslationModelConfig)
    return config


_BASE, _BIG = _translator("transformer_base"), _translator("transformer_big")

PARAMETERS = (
    PublishedParameters(f"{VIT}, table 1", "ViT-Base", MODELS["vit_b16"], 86),
    PublishedParameters(f"{VIT}, table 1", "ViT-Large", MODELS["vit_l16"], 307),
    PublishedParameters(f"{VIT}, table 1", "ViT-Huge", MODELS["vit_h14"], 632),
    PublishedParameters(f"{TRANSFORMER}, table 3", "Transformer base", _BASE, 65),
    PublishedParameters(f"{TRANSFORMER}, table 3", "Transformer big", _BIG, 213),
)

# Dosovitskiy et al. 2021, table 6; images of 224 x 224 pixels (table 3). The hybrids are quoted.
COMPUTE = (
    PublishedCompute("ViT-B/32", MODELS["vit_b32"], 7, 55),
    PublishedCompute("ViT-B/16", MODELS["vit_b16"], 7, 224),
    PublishedCompute("ViT-L/32", MODELS["vit_l32"], 7, 196),
    PublishedCompute("ViT-L/16", MODELS["vit_l16"], 7, 783),
    PublishedCompute("ViT-H/14", MODELS["vit_h14"], 14, 4262),
    PublishedCompute("ResNet50x1", MODELS["bit_r50x1"], 7, 50),
    PublishedCompute("ResNet50x2", BiTConfig(width=128), 7, 199),
    PublishedCompute("ResNet101x1", MODELS["bit_r101x1"], 7, 96),
    PublishedCompute("ResNet152x1", BiTConfig(depths=(3, 8, 36, 3)), 7, 141),
    PublishedCompute("ResNet152x2", MODELS["bit_r152x2"], 7, 563),
    PublishedCompute("ResNet200x3", BiTConfig(depths=(3, 24, 36, 3), width=192), 14, 3306),
)
JFT_IMAGES = 303e6  # Dosovitskiy et al. 2021, section 4.1
BACKWARD = (
    3  # a step's operations over those of its forward pass: the backward pass makes two products for one
)

# Vaswani et al. 2017, table 2; steps, hours and tokens of a step: sections 5.1 and 5.2.
TRAINING = (
    PublishedTraining("Transformer base", _BASE, 100_000, 12, 3.3e18),
    PublishedTraining("Transformer big", _BIG, 300_000, 3.5 * 24, 2.3e19),
)
NUM_GPUS, GPU_FLOPS = 8, 9.5e12  # section 5.2 and footnote 5: single precision, sustained, of a P100
STEP_TOKENS = 25_000  # of the sources, and as many of the targets
SENTENCE_TOKENS = 25  # ours, for the attention in a sentence, which is a small part

# The first grid of a Swin or a PVT: patches of 4 x 4 pixels of an image of 224 x 224.
GRID = ViTConfig(patch_size=4, width=96, depth=1, num_heads=3, class_token=False, pool="mean")
GRID_ELEMENTS = 9_834_496  # (56 * 56) ** 2
WINDOWED = MODELS["swin_t"]

_TABLE_5, _TABLE_6, _TABLE_2 = f"{VIT}, table 5", f"{VIT}, table 6", f"{TRANSFORMER}, table 2"
_SIZES = ("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32", "ViT-H/14")
_ACCURACIES = {
    "ImageNet": (77.91, 73.38, 76.53, 71.16, None),
    "ImageNet-21k": (83.97, 81.28, 85.15, 80.99, 85.13),
    "JFT-300M": (84.15, 80.73, 87.12, 84.37, 88.04),
}
_HYBRIDS = {
    "R50x1+ViT-B/32, 7 epochs": 106,
    "R50x1+ViT-B/16, 7 epochs": 274,
    "R50x1+ViT-L/32, 7 epochs": 246,
    "R50x1+ViT-L/16, 7 epochs": 859,
    "R50x1+ViT-L/16, 14 epochs": 1668,
}
# BLEU of English-German and English-French, FLOPs of both.
_TRANSLATORS: dict[str, tuple[float | None, float | None, float | None, float | None]] = {
    "ByteNet": (23.75, None, None, None),
    "Deep-Att + PosUnk": (None, 39.2, None, 1.0e20),
    "GNMT + RL": (24.6, 39.92, 2.3e19, 1.4e20),
    "ConvS2S": (25.16, 40.46, 9.6e18, 1.5e20),
    "MoE": (26.03, 40.56, 2.0e19, 1.2e20),
    "Deep-Att + PosUnk ensemble": (None, 40.4, None, 8.0e20),
    "GNMT + RL ensemble": (26.30, 41.16, 1.8e20, 1.1e21),
    "ConvS2S ensemble": (26.36, 41.29, 7.7e19, 1.2e21),
    "Transformer base": (27.3, 38.1, None, None),
    "Transformer big": (28.4, 41.8, None, None),
}
_TRANSLATOR_COLUMNS = ("BLEU en-de", "BLEU en-fr", "FLOPs en-de", "FLOPs en-fr")

QUOTED = (
    *(
        Quoted(_TABLE_5, model, f"ImageNet top-1 %, pre-trained on {data}", value)
        for data, values in _ACCURACIES.items()
        for model, value in zip(_SIZES, values, strict=True)
        if value is not None
    ),
    *(Quoted(_TABLE_6, model, "exaFLOPs", value) for model, value in _HYBRIDS.items()),
    *(
        Quoted(_TABLE_2, model, quantity, value)
        for model, values in _TRANSLATORS.items()
        for quantity, value in zip(_TRANSLATOR_COLUMNS, values, strict=True)
        if value is not None
    ),
)
