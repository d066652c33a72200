"""The node library: one file for each family of nodes."""

from __future__ import annotations

import importlib

from app.extensions import node_types_in
from app.folders import Folders
from app.graph.registry import Registry

MODULES = (
    "expression",
    "guidance",
    "image",
    "image_files",
    "image_tensor",
    "latent",
    "loops.denoise",
    "loops.repeat",
    "mask",
    "mask_blend",
    "noise",
    "primitives",
    "schedulers.ddim",
    "schedulers.dpmpp",
    "schedulers.euler",
    "schedulers.masked_diffusion",
    "tensor_convert",
    "tensor_math",
    "tensor_reduce",
    "tensor_select",
    "tensor_shape",
    "text",
)


def builtin_registry(folders: Folders) -> Registry:
    """Return a registry of every node type of the library; `folders`: where those that read model files look."""
    from nodes.components import onnx_component
    from nodes.image_files import image_file_nodes
    from nodes.text import text_nodes

    registry = Registry([onnx_component(folders)])
    for name in MODULES:
        for node_type in node_types_in(importlib.import_module(f"nodes.{name}")):
            registry.add(node_type)
    for node_type in (*text_nodes(folders), *image_file_nodes(folders)):
        registry.add(node_type)
    return registry
