"""Key tables of the checkpoints of CLIP's authors."""
