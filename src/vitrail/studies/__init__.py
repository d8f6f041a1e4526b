"""Questions asked of trained models of any task: comparisons, probes, robustness, calibration."""
