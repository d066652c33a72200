"""Small ONNX models for the runtime tests, and components that run them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

from app.engine.cancel import CancelToken
from app.engine.context import NodeContext
from app.folders import Folders
from app.runtime.sessions import SessionPool
from nodes.components import Component, onnx_component

Array = np.ndarray[Any, np.dtype[Any]]

DOUBLE = "(float[B,N] x) => (float[B,N] y) { y = Add(x, x) }"


def save(
    folder: Path,
    name: str,
    graph: str,
    weights: Mapping[str, Array] | None = None,
    *,
    external: str = "",
    ir_version: int = 8,
    opset: int = 17,
) -> Path:
    """Write a model given in ONNX's text format; returns its path.

    weights: initializers by name. external: file beside the model that holds them.
    """
    model = parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}]> {name} {graph}')
    model.graph.initializer.extend(numpy_helper.from_array(value, key) for key, value in (weights or {}).items())
    path = folder / f"{name}.onnx"
    if external:
        (folder / external).unlink(missing_ok=True)  # onnx appends to a file that is there
        onnx.save(model, path, save_as_external_data=True, location=external, size_threshold=0)
    else:
        onnx.save(model, path)
    return path


def add_constant(folder: Path, name: str, values: Array, external: str = "") -> Path:
    """Write a model that adds fixed values: float32 [n] x -> y."""
    n = len(values)
    graph = f"(float[{n}] x) => (float[{n}] y) {{ y = Add(x, w) }}"
    return save(folder, name, graph, {"w": values.astype(np.float32)}, external=external)


def with_location(path: Path, location: str) -> Path:
    """Write a model's copy whose external data is said to be elsewhere; returns the copy's path."""
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    changed = path.with_name(f"moved_{path.name}")
    changed.write_bytes(model.SerializeToString())
    return changed


def component(
    path: Path, *, pool: SessionPool | None = None, cancel: CancelToken | None = None, **literals: Any
) -> Component:
    """Return a component that runs a model file on the CPU. literals: its settings."""
    folders = Folders(models=(path.parent,))
    made = onnx_component(folders)
    context = NodeContext("1", "Model", folders, pool or SessionPool(), cancel or CancelToken(), lambda event: None)
    settings = {"model": path.name, "device": "cpu", "lanes": "separate", "state": [], **literals}
    instance = made.prepare(context, settings)
    assert isinstance(instance, Component)
    return instance


def floats(*values: float) -> Array:
    """Return float32 [1, n]."""
    return np.array([values], np.float32)


def of_type(name: str, dtype: int, shape: list[Any]) -> onnx.ValueInfoProto:
    """Return a port of an ONNX element type."""
    return helper.make_tensor_value_info(name, dtype, shape)
