"""What runs a model: torch, eager or compiled, ONNX Runtime and OpenVINO behind one contract."""
