"""Published checkpoints in our names, and back: one key table for each source and family."""
