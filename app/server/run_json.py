"""A run as our own API shows it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from app.server.active_run import ActiveRun
from app.server.storage.schema import StoredRun
from app.worker.event_json import problem_data


def run_json(run: StoredRun, active: ActiveRun | None = None, *, whole: bool = False) -> dict[str, Any]:
    """Return a stored run as JSON-ready data. active: the same run in hand, whose progress is told.

    whole: with the document and the times of nodes and steps.
    """
    data: dict[str, Any] = {
        "run": run.id,
        "number": run.number,
        "state": run.state,
        "source": run.source,
        "name": run.name,
        "client_id": run.client_id,
        "priority": run.priority,
        "created": run.created,
        "started": run.started,
        "ended": run.ended,
        "seconds": run.seconds,
        "outputs": [_output(asdict(output)) for output in run.outputs],
        "problems": [problem_data(problem) for problem in run.problems],
    }
    if active is not None and active.id == run.id:
        data |= {"progress": progress_json(active), "outputs": list(active.outputs)}
    if whole:
        data |= {
            "document": run.document,
            "targets": run.targets,
            "node_types": run.node_types,
            "seconds_by_node": run.seconds_by_node,
            "step_seconds_by_loop": run.step_seconds_by_loop,
            "cached": run.cached,
            "session_loads": run.session_loads,
            "session_hits": run.session_hits,
        }
    return data


def progress_json(active: ActiveRun) -> dict[str, Any]:
    """Return how far a run in hand is: by node its state, and of loops their step."""
    nodes = {}
    for node, progress in active.nodes.items():
        entry: dict[str, Any] = {"state": progress.state}
        if progress.step:
            entry |= {"step": progress.step, "steps": progress.steps}
        if progress.seconds is not None:
            entry["seconds"] = progress.seconds
        nodes[node] = entry
    return {"current": active.current, "nodes": nodes}


def _output(output: dict[str, Any]) -> dict[str, Any]:
    """Leave out what an output has not got."""
    kept = {key: value for key, value in output.items() if value is not None}
    if "path" not in kept:
        kept.pop("folder", None)
    return kept
