"""How a DETR is made small, and its choices that no variant has."""

CHANGES = {
    "backbone_width": 8,
    "backbone_depths": (1, 1, 2),
    "width": 12,
    "hidden_dim": 20,
    "num_heads": 3,
    "encoder_depth": 2,
    "decoder_depth": 3,
    "dropout": 0.0,
    "num_classes": 5,
    "num_queries": 7,
    "image_size": (48, 64),
}
FURTHER = {"detr_scratch": ("detr_r50", {"backbone_norm": "batch", "num_frozen": 0})}
