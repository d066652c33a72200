"""A stored run as ComfyUI's API shows it: queue item, history entry, job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from app.server.comfy.ui_output import ui_outputs
from app.server.storage.schema import State, StoredRun

_STATUS: dict[State, str] = {
    "queued": "pending",
    "running": "in_progress",
    "done": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}
MAX_PREVIEW_TEXT = 1024


def job_state(status: str) -> State | None:
    """Return our word for a job's status, or None for an unknown one."""
    return next((state for state, name in _STATUS.items() if name == status), None)


def queue_item(run: StoredRun) -> list[Any]:
    """Return [number, prompt_id, prompt, extra_data, outputs_to_execute]."""
    return [run.priority, run.id, _prompt(run), run.extra_data, list(run.targets or ())]


def history_entry(run: StoredRun) -> dict[str, Any]:
    """Return an ended run as /history shows it."""
    outputs = ui_outputs(map(asdict, run.outputs))
    return {"prompt": queue_item(run), "outputs": outputs, "status": _status(run), "meta": _meta(outputs)}


def job_entry(run: StoredRun, *, whole: bool = False) -> dict[str, Any]:
    """Return a run as /api/jobs shows it; keys without a value are left out."""
    outputs = ui_outputs(map(asdict, run.outputs))
    job: dict[str, Any] = {
        "id": run.id,
        "status": _STATUS[run.state],
        "priority": run.priority,
        "create_time": _ms(run.created),
        "execution_start_time": _ms(run.started),
        "execution_end_time": _ms(run.ended) if run.started is not None else None,
        "execution_error": _failure(run),
        "outputs_count": sum(len(items) for shown in outputs.values() for items in shown.values()),
        "preview_output": _preview(outputs),
        "workflow_id": run.workflow_id,
    }
    if whole:
        job |= {
            "outputs": outputs,
            "execution_status": _status(run) if run.ended is not None else None,
            "workflow": {"prompt": _prompt(run), "extra_data": run.extra_data},
        }
    return {key: value for key, value in job.items() if value is not None}


def _prompt(run: StoredRun) -> dict[str, Any]:
    prompt = run.prompt
    return dict(run.document["nodes"]) if prompt is None else prompt


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)


def _status(run: StoredRun) -> dict[str, Any]:
    is_done = run.state == "done"
    return {"status_str": "success" if is_done else "error", "completed": is_done, "messages": run.messages}


def _failure(run: StoredRun) -> dict[str, Any] | None:
    return next((data for kind, data in run.messages if kind == "execution_error"), None)


def _meta(outputs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        node: {"node_id": node, "display_node": node, "parent_node": None, "real_node_id": node} for node in outputs
    }


def _preview(outputs: Mapping[str, Mapping[str, list[Any]]]) -> dict[str, Any] | None:
    """Return the first file that a run gave, else its first text, with the node it is from."""
    first = [(node, kind, items[0]) for node, kinds in outputs.items() for kind, items in kinds.items() if items]
    for node, kind, item in sorted(first, key=lambda entry: entry[1] == "text"):
        about = {"nodeId": node, "mediaType": kind}
        if isinstance(item, dict):
            return {**item, **about}
        cut = {"truncated": True} if len(item) > MAX_PREVIEW_TEXT else {}
        return {"content": item[:MAX_PREVIEW_TEXT], **cut, **about}
    return None
