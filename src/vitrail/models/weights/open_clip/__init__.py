"""Key tables of the checkpoints of open_clip."""
