"""Images with captions: formats, the doctor, and sources for captioning and contrastive training."""
