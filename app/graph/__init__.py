"""Documents, types, validation, planning and signatures: pure Python, no I/O, no ONNX Runtime."""
