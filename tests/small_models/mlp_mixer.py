CHANGES = {
    "width": 12,
    "depth": 2,
    "token_hidden_dim": 7,
    "channel_hidden_dim": 17,
    "num_classes": 5,
    "patch_size": 4,
    "image_size": (16, 24),
}
