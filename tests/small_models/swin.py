CHANGES = {
    "patch_size": 2,
    "width": 6,
    "depths": (2, 3, 2),
    "num_heads": (1, 3, 2),
    "window_size": 3,  # leaves windows to complete, and more than one in the first two stages
    "mlp_ratio": 2.0,
    "drop_path": 0.0,
    "num_classes": 5,
    "image_size": (16, 24),
}
