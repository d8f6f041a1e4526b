"""Weights as the original JAX code of the Vision Transformer stores them: one file for each family."""
