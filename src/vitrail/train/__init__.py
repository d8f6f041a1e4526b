"""The machinery of training: loop, optimisers, run directories, budgets, processes; knows no kind of data."""
