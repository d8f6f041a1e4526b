"""What runs, exports and times a model: torch, compiled, ONNX Runtime, OpenVINO."""
