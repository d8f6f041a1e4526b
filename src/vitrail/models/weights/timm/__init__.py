"""Weights named as timm names them: one file for each family, found by itself."""
