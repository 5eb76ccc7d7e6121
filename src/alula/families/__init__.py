"""Checkpoint folders in, ONNX graphs out: one module per family."""
