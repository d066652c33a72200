"""How a run failed, in the words of ComfyUI's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def execution_failure(
    run: str, status: str, problems: Sequence[Mapping[str, Any]], class_types: Mapping[str, str]
) -> tuple[str, dict[str, Any]]:
    """Return the message type and data of a run that did not end well.

    The first problem is told as the error; its sentence takes the place of a traceback, which belongs in the log.
    """
    first = problems[0] if problems else {}
    node = first.get("node", "")
    data: dict[str, Any] = {"prompt_id": run, "node_id": node, "node_type": class_types.get(node, ""), "executed": []}
    if status == "cancelled":
        return "execution_interrupted", data
    place = f"{first['title'] or class_types.get(node, '')} (node {node}): " if node else ""
    data |= {
        "exception_message": place + first.get("message", "the run failed"),
        "exception_type": first.get("code", "internal"),
        "traceback": [],
        "current_inputs": {first["input"]: []} if first.get("input") else {},
        "current_outputs": [],
    }
    return "execution_error", data
