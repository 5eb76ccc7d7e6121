"""TensorRT 8.6, 10, 11 and TensorRT-RTX behind one backend; what differs between them is in `vendor`."""
