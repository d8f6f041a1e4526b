CHANGES = {
    "width": 12,
    "depth": 2,
    "num_heads": 3,
    "num_classes": 5,
    "patch_size": 4,
    "image_size": (16, 24),
}
