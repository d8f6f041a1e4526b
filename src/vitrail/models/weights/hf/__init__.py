"""Weights named as transformers names them: one file for each family, found by itself."""
