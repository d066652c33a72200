"""ComfyUI's API prompt read as a workflow: {node id: {"class_type", "inputs", "_meta"}}, bare or under "prompt"."""

from __future__ import annotations

from typing import Any

from app.graph.document import VERSION, Workflow, decode
from app.graph.errors import WorkflowError


def load(text: str | bytes) -> Workflow:
    """Return the workflow in a JSON text of any known format. Raises WorkflowError."""
    return read_any(decode(text))


def read_any(data: Any) -> Workflow:
    """Return the workflow in decoded JSON: our own document or ComfyUI's API prompt. Raises WorkflowError.

    Node types and keys that nobody here knows are kept.
    """
    if isinstance(data, dict):
        nodes = data.get("nodes")
        if isinstance(nodes, dict):
            return Workflow.parse(data)
        if isinstance(nodes, list) and "links" in data:
            message = (
                "found a graph as ComfyUI's editor saves it, accepted an Ortloom workflow or ComfyUI's API format; "
                "export it there with Save (API Format)"
            )
            raise WorkflowError.of(message, "shape")
        prompt = data.get("prompt", data)
        if _is_prompt(prompt):
            kept = {key: value for key, value in data.items() if key != "prompt"} if prompt is not data else {}
            return Workflow.parse({"version": VERSION, **kept, "nodes": prompt})
    return Workflow.parse(data)


def _is_prompt(data: Any) -> bool:
    """Return whether the data is a non-empty object whose values look like nodes, or mean to."""
    return (
        isinstance(data, dict)
        and bool(data)
        and all(isinstance(node, dict) for node in data.values())
        and any("class_type" in node for node in data.values())
    )
