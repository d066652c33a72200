"""Changes of a workflow's inputs by name: `Denoise.cfg`, `5.cfg`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.graph.document import Workflow
from app.graph.errors import WorkflowError


def split_place(workflow: Workflow, place: str) -> tuple[str, str]:
    """Return (node id, input name) of NODE.INPUT, NODE an id or a title. Raises WorkflowError.

    Titles and inputs may hold dots themselves: it is split at the first dot that leaves a known node before it.
    """
    dots = [index for index, character in enumerate(place) if character == "."]
    if not dots or not place[: dots[0]] or not place[dots[-1] + 1 :]:
        accepted = "NODE.INPUT, e.g. Denoise.cfg or 5.cfg"
        raise WorkflowError.of(f"found {place!r}, accepted {accepted}; write it so", "bad_set")
    for dot in dots[1:]:
        try:
            return workflow.find_node(place[:dot]), place[dot + 1 :]
        except WorkflowError:
            continue
    return workflow.find_node(place[: dots[0]]), place[dots[0] + 1 :]


def placed(workflow: Workflow, changes: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Return {(node id, input name): value} of {NODE.INPUT: value}. Raises WorkflowError."""
    return {split_place(workflow, place): value for place, value in changes.items()}
