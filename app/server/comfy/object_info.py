"""Our node types in the schema of ComfyUI's /object_info."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from app.graph.node import NodeType, OutputPort
from app.server.comfy.input_config import FileNames, input_config
from app.server.comfy.model_names import file_names
from app.server.keys import NODES, SETTINGS

routes = web.RouteTableDef()


@routes.get("/object_info")
async def all_nodes(request: web.Request) -> web.Response:
    """Describe every node type. 200 {class name: description}."""
    registry = await request.app[NODES].registry()
    files = await asyncio.to_thread(file_names, request.app[SETTINGS].folders)
    return web.json_response({node_type.name: object_info(node_type, files) for node_type in registry})


@routes.get("/object_info/{node_class}")
async def one_node(request: web.Request) -> web.Response:
    """Describe one node type. 200 {class name: description}, {} when it is unknown: clients probe for nodes so."""
    registry = await request.app[NODES].registry()
    node_type = registry.get(request.match_info["node_class"])
    if node_type is None:
        return web.json_response({})
    files = await asyncio.to_thread(file_names, request.app[SETTINGS].folders) if _names_files(node_type) else None
    return web.json_response({node_type.name: object_info(node_type, files)})


def object_info(node_type: NodeType, files: FileNames | None = None) -> dict[str, Any]:
    """Return a node type in ComfyUI's schema.

    files: what inputs that name a file offer; without it they are plain STRINGs. Of a node whose ports depend on its
    settings only the settings are told.
    """
    ports = node_type.ports
    required = [port for port in ports.inputs if port.required]
    optional = [port for port in ports.inputs if not port.required]
    return {
        "input": {
            "required": {port.name: input_config(port, files) for port in required},
            "optional": {port.name: input_config(port, files) for port in optional},
        },
        "input_order": {
            "required": [port.name for port in required],
            "optional": [port.name for port in optional],
        },
        "is_input_list": False,
        "output": [port.type.kind for port in ports.outputs],
        "output_is_list": [False] * len(ports.outputs),
        "output_name": [port.name for port in ports.outputs],
        "output_tooltips": [_output_tooltip(port) for port in ports.outputs],
        "output_matchtypes": None,
        "name": node_type.name,
        "display_name": node_type.display_name,
        "description": node_type.help,
        "python_module": _module(node_type.source),
        "category": node_type.category,
        "output_node": node_type.output_node,
        "has_intermediate_output": False,
        "search_aliases": list(node_type.search_aliases),
    }


def _names_files(node_type: NodeType) -> bool:
    return any(FileNames().of(port.widget) is not None for port in node_type.ports.inputs)


def _output_tooltip(port: OutputPort) -> str:
    when = "Given anew on every step of the loop." if port.per_step else ""
    return " ".join(part for part in (port.help, when) if part)


def _module(source: str) -> str:
    """Return `nodes.x` for the library's own modules, `custom_nodes.x` for those of an extension."""
    return source if source.startswith("nodes.") else f"custom_nodes.{source.partition(':')[0].removesuffix('.py')}"
