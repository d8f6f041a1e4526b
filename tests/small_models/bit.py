CHANGES = {
    "width": 32,  # the norms have 32 groups
    "depths": (1, 2, 1),
    "num_classes": 5,
    "image_size": (16, 24),
}
