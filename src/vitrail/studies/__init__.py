"""Studies of trained models of any task: comparisons, probes, robustness, calibration."""
