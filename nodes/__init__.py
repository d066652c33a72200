"""The node library: one file for each family of nodes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

from app.folders import Folders
from app.graph.node import NodeType
from app.graph.registry import Registry

MODULES = (
    "expression",
    "guidance",
    "image",
    "image_files",
    "latent",
    "loops.denoise",
    "loops.repeat",
    "mask",
    "noise",
    "primitives",
    "schedulers.ddim",
    "schedulers.dpmpp",
    "schedulers.euler",
    "schedulers.masked_diffusion",
    "tensor_convert",
    "tensor_math",
    "tensor_shape",
    "text",
)


def builtin_registry(folders: Folders) -> Registry:
    """Return a registry of every node type of the library; `folders`: where those that read model files look."""
    from nodes.components import onnx_component

    registry = Registry([onnx_component(folders)])
    for name in MODULES:
        for node_type in node_types_in(importlib.import_module(f"nodes.{name}")):
            registry.add(node_type)
    return registry


def node_types_in(module: ModuleType) -> Iterator[NodeType]:
    """Yield the node types that a module defines, bare or as `node_type` of its functions, in order."""
    for value in list(vars(module).values()):
        found = value if isinstance(value, NodeType) else getattr(value, "node_type", None)
        if isinstance(found, NodeType) and found.source == module.__name__:
            yield found
