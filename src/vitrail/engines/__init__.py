"""Engines that run, export and benchmark a model: torch, compiled, ONNX Runtime, OpenVINO."""
