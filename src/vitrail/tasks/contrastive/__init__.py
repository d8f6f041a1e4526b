"""Image-text matching (CLIP)."""
