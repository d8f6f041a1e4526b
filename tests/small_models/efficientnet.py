CHANGES = {
    "width_factor": 0.25,
    "depth_factor": 0.3,
    "dropout": 0.0,
    "drop_path": 0.0,
    "num_classes": 5,
    "image_size": (16, 24),
}
