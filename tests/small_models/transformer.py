"""How a Transformer is made small, and its choices that no variant has."""

from vitrail.nn.mixers import MIXERS

CHANGES = {
    "source_vocabulary_size": 17,
    "target_vocabulary_size": 17,
    "width": 12,
    "hidden_dim": 20,
    "num_heads": 3,
    "encoder_depth": 2,
    "decoder_depth": 2,
    "dropout": 0.0,
    "max_length": 9,
}
APART = {"target_vocabulary_size": 19, "tie": "output"}
FURTHER = {
    "transformer_pre": ("transformer_base", {"norm": "pre", "activation": "gelu", "output_bias": True}),
    "transformer_halves": ("transformer_base", {"positions": "sinusoidal_halves", **APART}),
    "transformer_learned": ("transformer_base", {"positions": "learned", "scale_embedding": False}),
    "transformer_relative_pre": ("transformer_base", {"positions": "relative", "norm": "pre"}),
    "transformer_relative": ("transformer_base", {"positions": "relative", "tie": "none"}),
    "transformer_rotary_pre": ("transformer_base", {"positions": "rotary", "norm": "pre", **APART}),
    "transformer_rotary": ("transformer_base", {"positions": "rotary", "activation": "silu"}),
    "transformer_none": (
        "transformer_base",
        {"positions": "none", "tie": "none", "output_bias": True, "target_vocabulary_size": 13},
    ),
    **{
        f"transformer_{mixer}": ("transformer_base", {"mixer": mixer})
        for mixer in MIXERS
        if mixer not in ("attention", "lstm_2d")  # the latter reads the rows and columns of images
    },
}
