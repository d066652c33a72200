"""Everything that touches onnxruntime: sessions, devices, tensors, component state."""
