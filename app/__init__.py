"""Ortloom: node-graph workflows for ONNX models."""
