"""What all tasks share of data: images, tables, splits, sampling, streams. Knows no model."""
