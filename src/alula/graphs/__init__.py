"""ONNX to ONNX: passes that lower a graph for an engine or write a precision into it."""
