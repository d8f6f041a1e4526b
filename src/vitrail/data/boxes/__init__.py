"""Images with boxes around things: formats, the doctor and its repairs, preparation, and sources."""
