"""The engine's events as JSON, the same in the worker's messages, in the API's stream and in the history."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from app.engine.events import (
    Cached,
    Cancelled,
    Done,
    Event,
    Failed,
    NodeFinished,
    NodeStarted,
    Output,
    Preview,
    Queued,
    Restarted,
    Started,
    Steered,
    StepFinished,
)
from app.graph.errors import Problem

Roots = dict[str, Path]
"""Folder by its name for clients: "output" and "temp"."""


def event_json(event: Event, roots: Roots) -> dict[str, Any] | None:
    """Return an event as JSON-ready data with its `type`; None for those that the server makes itself.

    Previews travel as pictures, and what a run ends with in its record.
    """
    match event:
        case Started(nodes=nodes):
            return {"type": "started", "nodes": list(nodes)}
        case Cached(nodes=nodes):
            return {"type": "cached", "nodes": list(nodes)}
        case NodeStarted(node=node):
            return {"type": "node_started", "node": node}
        case NodeFinished(node=node, seconds=seconds):
            return {"type": "node_finished", "node": node, "seconds": round(seconds, 6)}
        case StepFinished():
            times = {"step": event.step, "steps": event.steps, "seconds": round(event.seconds, 6)}
            return {"type": "step_finished", "node": event.node, **times}
        case Output():
            return {"type": "output", "output": output_json(event, roots)}
        case Steered():
            return {"type": "steered", "node": event.node, "input": event.input, "step": event.step}
        case Restarted(node=node):
            return {"type": "restarted", "node": node}
        case Queued() | Preview() | Failed() | Cancelled() | Done():
            return None


def output_json(output: Output, roots: Roots) -> dict[str, Any]:
    """Return an output: node, type, and folder with path or value. Paths are relative: a client sees no other."""
    entry: dict[str, Any] = {"node": output.node, "type": output.type}
    if output.path is not None:
        entry |= place_of(Path(output.path), roots)
    extras = {"value": finite(output.value), "step": output.step}
    return entry | {key: value for key, value in extras.items() if value is not None}


def preview_output(node: str, path: Path, roots: Roots) -> dict[str, Any]:
    """Return a picture that a node showed as an output of type preview."""
    return {"node": node, "type": "preview", **place_of(path, roots)}


def place_of(path: Path, roots: Roots) -> dict[str, str]:
    """Return {"folder", "path"} of a file that an output node wrote, path relative with / between its parts."""
    for name, root in roots.items():
        if path.is_relative_to(root):
            return {"folder": name, "path": path.relative_to(root).as_posix()}
    return {"folder": "", "path": path.name}


def finite(value: Any) -> Any:
    """Return a value with NaN and the infinities, which JSON lacks, as text, and unknown objects as their text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def problem_data(problem: Problem) -> dict[str, str]:
    """Return a problem as JSON-ready data; `Problem(**data)` makes it again."""
    return {
        "message": problem.message,
        "code": problem.code,
        "node": problem.node,
        "title": problem.title,
        "input": problem.input,
    }
