"""Weights named as torchvision names them: one file for each family, found by itself."""
