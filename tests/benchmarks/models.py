"""Denoisers of a chosen cost, built with onnx.helper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def denoiser(path: Path, matmuls: int, size: int, latent: tuple[int, ...]) -> None:
    """Write a denoiser: 0.1 * sample + 0 * (timestep + a chain of `matmuls` products of size x size matrices).

    sample float32 `latent`, timestep float32 [1] -> out_sample. Every product is one operator of about the same cost.
    """
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(0, size**-0.5, (size, size)).astype(np.float32), "w")]
    weights += [numpy_helper.from_array(np.float32(0), "zero"), numpy_helper.from_array(np.float32(0.1), "tenth")]
    nodes = [helper.make_node("Mul", ["sample", "tenth"], ["scaled"]), helper.make_node("Identity", ["w"], ["m0"])]
    last = "timestep"
    if matmuls:
        nodes += [helper.make_node("Mul", ["w", "timestep"], ["m0_"])]
        nodes[1] = nodes.pop()
        nodes += [helper.make_node("MatMul", [f"m{i}" if i else "m0_", "w"], [f"m{i + 1}"]) for i in range(matmuls)]
        nodes += [helper.make_node("ReduceMean", [f"m{matmuls}"], ["mean"], keepdims=0)]
        last = "mean"
    else:
        nodes.pop()
    nodes += [
        helper.make_node("Mul", [last, "zero"], ["none"]),
        helper.make_node("Add", ["scaled", "none"], ["out_sample"]),
    ]
    graph = helper.make_graph(
        nodes,
        "denoiser",
        [
            helper.make_tensor_value_info("sample", TensorProto.FLOAT, list(latent)),
            helper.make_tensor_value_info("timestep", TensorProto.FLOAT, [1]),
        ],
        [helper.make_tensor_value_info("out_sample", TensorProto.FLOAT, list(latent))],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
