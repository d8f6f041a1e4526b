"""Layers: tensors in, tensors out, plain keyword arguments."""
