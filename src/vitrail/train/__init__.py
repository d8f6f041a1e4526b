"""Training: loop, optimisers, run directories, wall-clock budgets, distributed processes; independent of the
task.
"""
