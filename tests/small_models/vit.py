"""How a ViT is made small, and its choices that no variant has."""

from vitrail.nn.mixers import MIXERS

CHANGES = {
    "width": 12,
    "depth": 2,
    "num_heads": 3,
    "drop_path": 0.0,
    "num_classes": 5,
    "patch_size": 4,
    "image_size": (16, 24),
}
FOR_PHOTOGRAPHS = {"patch_size": 16}
MEAN = {"class_token": False, "pool": "mean"}
FURTHER = {
    "vit_pairwise_post_flatten": (
        "vit_ti16",
        {"positions": "pairwise", "norm_place": "post", "pool": "flatten", "layer_scale": 0.5},
    ),
    "vit_rotary_branch_post": (
        "vit_ti16",
        {"positions": "rotary", "norm_place": "branch_post", "stem": "mlp", "head_hidden_dim": 7},
    ),
    # A class token has no place, so in the last block its pool would leave the table without a gradient.
    "vit_relative_general_mean": (
        "vit_ti16",
        {"positions": "relative_bias", "score": "general", "stem_norm": True, **MEAN},
    ),
    "vit_sinusoidal_additive": ("vit_ti16", {"positions": "sinusoidal", "score": "additive"}),
    # A class token at the start of a sequence hears too little of its end.
    **{f"vit_{mixer}": ("vit_ti16", {"mixer": mixer, **MEAN}) for mixer in MIXERS if mixer != "attention"},
}
