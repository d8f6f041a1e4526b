CHANGES = {
    "patch_sizes": (4, 2, 1),
    "widths": (6, 11, 9),
    "hidden_dims": (2, 5, 3),
    "depths": (1, 2, 1),
    "drop_path": 0.0,
    "num_classes": 5,
    "image_size": (16, 24),
}
