CHANGES = {
    "width": 8,
    "depths": (1, 2, 1, 1),
    "num_classes": 5,
    "image_size": (16, 24),
}
