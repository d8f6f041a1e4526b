"""Pages to look through attention maps."""
