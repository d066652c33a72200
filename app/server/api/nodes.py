"""Node types, as the editor needs them: their schemas, ports that depend on values, loops of a document."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from app.graph.document import Node, Workflow
from app.graph.errors import WorkflowError
from app.graph.registry import ports_schema, schema
from app.server.body import read_object
from app.server.errors import ApiError
from app.server.keys import NODES

routes = web.RouteTableDef()


@routes.get("/api/node_types")
async def list_node_types(request: web.Request) -> web.Response:
    """Return the schema of every node type, and what came of each extension. 200 {"node_types", "extensions"}."""
    library = request.app[NODES]
    registry = await library.registry()
    extensions = [{key: value for key, value in report.items() if key != "traceback"} for report in library.extensions]
    return web.json_response({"node_types": list(map(schema, registry)), "extensions": extensions})


@routes.get("/api/node_types/{name}")
async def get_node_type(request: web.Request) -> web.Response:
    """Return one node type's schema. 200; 404 with the nearest names."""
    name = request.match_info["name"]
    registry = await request.app[NODES].registry()
    node_type = registry.get(name)
    if node_type is None:
        raise ApiError(404, registry.unknown(name[:100]), "unknown_node_type")
    return web.json_response(schema(node_type))


@routes.post("/api/node_types/{name}/ports")
async def get_ports(request: web.Request) -> web.Response:
    """Return the ports of a node with the body's `inputs`. 200 {"inputs", "outputs"}; 404; 422 they can't be told."""
    name = request.match_info["name"]
    body = await read_object(request)
    inputs = body.get("inputs", {})
    if not isinstance(inputs, dict):
        message = f"found inputs {str(inputs)[:60]}, accepted an object of literal values by name; send one"
        raise WorkflowError.of(message, "shape", input="inputs")
    workflow = Workflow({"1": Node("1", name, inputs)})
    registry = await request.app[NODES].registry_for(workflow)
    node_type = registry.get(name)
    if node_type is None:
        raise ApiError(404, registry.unknown(name[:100]), "unknown_node_type")
    defaults: dict[str, Any] = {port.name: port.default for port in node_type.ports.inputs if port.default is not None}
    ports = await asyncio.to_thread(node_type.ports_for, defaults | inputs)
    return web.json_response(ports_schema(ports))
