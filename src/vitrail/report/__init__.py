"""Pages that open offline: the parts that run reports and explanations share."""
