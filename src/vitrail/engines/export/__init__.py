"""Trained models as packages for other engines, each compared with the model that it was made of."""
