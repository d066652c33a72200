"""What a model file takes and gives as JSON-ready data, for `ortloom inspect` and for clients of the server."""

from __future__ import annotations

from typing import Any

from app.runtime.model_file import ModelSignature, TensorPort
from app.runtime.state import propose_state_pairs


def model_facts(signature: ModelSignature) -> dict[str, Any]:
    """Return ports, proposed state, opsets, metadata, bytes of the weights and operators, most frequent first.

    It holds no paths: clients see those of no server.
    """
    return {
        "inputs": [_port(port) for port in signature.inputs],
        "outputs": [_port(port) for port in signature.outputs],
        "proposed_state": propose_state_pairs(signature),
        "opsets": {domain or "ai.onnx": version for domain, version in signature.opsets.items()},
        "ir_version": signature.ir_version,
        "producer": signature.producer,
        "metadata": dict(signature.metadata),
        "weight_bytes": signature.weight_bytes,
        "ops": dict(sorted(signature.ops.items(), key=lambda item: (-item[1], item[0]))),
    }


def _port(port: TensorPort) -> dict[str, Any]:
    shape = None if port.shape is None else list(port.shape)
    return {"name": port.name, "dtype": port.dtype, "shape": shape, "has_default": port.has_default}
