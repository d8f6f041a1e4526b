CHANGES = {
    "depths": (1, 2),
    "width": 8,
    "num_heads": 2,
    "key_stride": 2,
    "num_classes": 5,
    "image_size": (16, 24),
}
FOR_PHOTOGRAPHS = {"key_stride": 8}
