"""Show, Attend and Tell, made small."""

from __future__ import annotations

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
