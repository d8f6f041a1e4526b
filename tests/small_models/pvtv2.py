CHANGES = {
    "patch_size": 2,
    "widths": (6, 8, 12, 10),
    "depths": (1, 2, 1, 1),
    "num_heads": (1, 2, 3, 2),
    "reductions": (4, 2, 1, 1),  # leaves more than one key in each stage
    "mlp_ratios": (2.0, 2.0, 1.5, 2.0),
    "drop_path": 0.0,
    "num_classes": 5,
    "image_size": (16, 24),
}
