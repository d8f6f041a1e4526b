"""The Transformer that captions, made small."""

from __future__ import annotations

from small_models.captioner import ENCODER

CHANGES = {
    **ENCODER,
    "vocabulary_size": 13,
    "image_size": (16, 12),
    "width": 12,
    "hidden_dim": 10,
    "num_heads": 3,
    "refining_depth": 1,
    "decoder_depth": 2,
    "dropout": 0.0,
}
FURTHER = {
    "nothing between encoder and decoder": ("caption_transformer", {"refining_depth": 0, "tie": False}),
}
