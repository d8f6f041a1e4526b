"""How a DETR with sampled attention is made small, and its choices that no variant has."""

CHANGES = {
    "backbone": None,
    "backbone_width": 6,
    "backbone_depths": (1, 1, 2, 1),
    "width": 24,
    "hidden_dim": 20,
    "num_heads": 3,
    "num_points": 2,
    "encoder_depth": 2,
    "decoder_depth": 2,
    "num_classes": 5,
    "num_queries": 7,
    "num_proposals": 11,
    "proposal_matches": 2,
    "num_denoising": 6,
    "image_size": (48, 64),
}
STEADY_QUERIES = {"queries": "learned"}  # cells whose scores are nearly equal change places by rounding
FURTHER = {
    "sdetr_learned": ("sdetr_nano", {"queries": "learned"}),
    "sdetr_one_level": ("sdetr_nano", {"strides": (16,), "num_denoising": 0}),
    "sdetr_finer": ("sdetr_nano", {"strides": (4, 8), "encoder_depth": 0}),
}
