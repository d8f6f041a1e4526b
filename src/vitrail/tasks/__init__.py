"""What a model is trained to do: one file joins loss, collation and evaluator of one task."""
