"""Key tables of the checkpoints of DETR's authors, ``detr-r50-*.pth`` and its kin."""
