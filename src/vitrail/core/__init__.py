"""Words and files: errors, settings, durable writes, the hub, boxes. Knows no model."""
