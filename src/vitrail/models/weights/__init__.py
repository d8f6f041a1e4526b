"""Published checkpoints in our names, and back: one key table per source and family."""
