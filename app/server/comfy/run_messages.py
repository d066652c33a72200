"""How a run began and ended, in the words of ComfyUI's messages; told to sockets and kept for the history."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from app.server.active_run import ActiveRun


def status_messages(run: ActiveRun, record: Mapping[str, Any]) -> list[list[Any]]:
    """Return what the history keeps of an ended run: [message, data] of its start, its cached nodes and its end."""
    at = {"prompt_id": run.id, "timestamp": int(run.started * 1000)}
    cached = {"nodes": list(run.cached), **at}
    return [["execution_start", at], ["execution_cached", cached], list(end_message(run, record))]


def end_message(run: ActiveRun, record: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the message about a run's end.

    Of a failed run the first problem is told as the error; its sentence takes the place of a traceback, which belongs
    in the log.
    """
    at = {"prompt_id": run.id, "timestamp": int(time.time() * 1000)}
    if record["status"] == "done":
        return "execution_success", at
    problem = record["problems"][0] if record["problems"] else {}
    node = problem.get("node") or run.current or ""
    executed = [name for name, progress in run.nodes.items() if progress.state == "finished" and name != node]
    about = {**at, "node_id": node, "node_type": run.class_types.get(node, ""), "executed": executed}
    if record["status"] == "cancelled":
        return "execution_interrupted", about
    place = f"{problem.get('title') or about['node_type']} (node {node}): " if node else ""
    return "execution_error", about | {
        "exception_message": place + problem.get("message", "the run failed"),
        "exception_type": problem.get("code", "internal"),
        "traceback": [],
        "current_inputs": {problem["input"]: []} if problem.get("input") else {},
        "current_outputs": list(run.nodes),
    }
