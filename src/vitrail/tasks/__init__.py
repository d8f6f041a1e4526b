"""Tasks: each joins data, loss, evaluator, predictor and report of one problem."""
