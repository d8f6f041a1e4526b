"""Show, Attend and Tell, made small."""

from __future__ import annotations

import torch

from vitrail.data.caption_preprocessing import CaptionPreprocessing
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.text.words import WordVocabulary, vocabulary_to_files
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel

WORDS = ("a", "dog", "runs", "on", "grass", "red", "the", "two", "boats")

ENCODER = {"encoder": "vit_nano", "encoder_changes": {"width": 12, "num_heads": 3, "depth": 1}}
CHANGES = {
    **ENCODER,
    "encoder_stage": -1,
    "vocabulary_size": 13,
    "image_size": (16, 12),
    "embedding_dim": 6,
    "hidden_dim": 8,
    "attention_dim": 5,
    "dropout": 0.0,
}
FURTHER = {
    "a GRU of two layers, untied": ("show_attend_tell", {"cell": "gru", "depth": 2, "tie": False}),
    "a frozen encoder": ("show_attend_tell", {"encoder_frozen": True, "pool": 2}),
    "a stage of a residual network": (
        "show_attend_tell",
        {"encoder": "resnet18", "encoder_changes": {"width": 4}, "encoder_stage": -3},
    ),
}


def small_captioner() -> LoadedModel:
    """Return a captioner with the weights that its seed gives."""
    torch.manual_seed(12)
    preprocessing = CaptionPreprocessing(images=Preprocessing(image_size=(16, 12)))
    return LoadedModel(
        build("show_attend_tell", **CHANGES).eval(),
        model_settings("show_attend_tell", **CHANGES),
        preprocessing.model_dump(mode="json"),
        [],
        {"task": {"max_length": 6}},
        vocabulary_to_files(WordVocabulary(WORDS)),
    )
