"""What it takes to queue a run that our own API asks for, and to wait for its end."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import web

from app.graph.changes import placed
from app.graph.comfy import read_any
from app.graph.document import Workflow
from app.graph.errors import WorkflowError
from app.server.errors import ApiError
from app.server.judgement import check
from app.server.keys import NODES, QUEUE
from app.server.storage.schema import NewRun, StoredRun

MAX_WAIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run that a client asks for. set: NODE.INPUT -> value. targets: node ids; all output nodes when None."""

    workflow: Workflow
    targets: tuple[str, ...] | None = None
    front: bool = False
    client_id: str | None = None
    name: str = ""
    source: Literal["api", "workflow"] = "api"

    @classmethod
    def parse(cls, body: Mapping[str, Any], workflow: Workflow | None = None, name: str = "") -> RunRequest:
        """Return the request in a body: document, set, targets, front, client_id, name. Raises WorkflowError.

        workflow: a saved one, in place of the body's `document`.
        """
        if workflow is None:
            if "document" not in body:
                message = "found no document, accepted a workflow as JSON; send it as `document`"
                raise WorkflowError.of(message, "shape", input="document")
            workflow = read_any(body["document"])
        changes = body.get("set", {})
        if not isinstance(changes, dict):
            message = f'found set {str(changes)[:60]}, accepted an object such as {{"Denoise.cfg": 3}}; send one'
            raise WorkflowError.of(message, "shape", input="set")
        targets = body.get("targets")
        if targets is not None and not (isinstance(targets, list) and all(isinstance(item, str) for item in targets)):
            message = f"found targets {str(targets)[:60]}, accepted a list of node ids; send one, or leave it out"
            raise WorkflowError.of(message, "shape", input="targets")
        client_id = body.get("client_id")
        return cls(
            workflow.with_inputs(placed(workflow, changes)),
            None if targets is None else tuple(targets),
            bool(body.get("front")),
            None if client_id is None else str(client_id),
            name or str(body.get("name", "")),
            "workflow" if name else "api",
        )


async def submit(app: web.Application, wanted: RunRequest) -> StoredRun:
    """Check and queue a run. Raises WorkflowError with everything that is wrong."""
    await check(app[NODES], wanted.workflow, wanted.targets)
    new = NewRun(
        str(uuid.uuid4()),
        wanted.workflow.to_json(),
        source=wanted.source,
        name=wanted.name,
        client_id=wanted.client_id,
        targets=wanted.targets,
        front=wanted.front,
    )
    return await app[QUEUE].submit(new)


def wait_seconds(request: web.Request) -> float | None:
    """Return how long the client waits for the end, from `?wait=`; None when it does not. Raises ApiError."""
    text = request.query.get("wait", "false").lower()
    if text in ("false", "0", "no", ""):
        return None
    if text in ("true", "yes"):
        return MAX_WAIT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= MAX_WAIT_S:
        accepted = f"true, false or seconds up to {MAX_WAIT_S:.0f}"
        raise ApiError(400, f"found wait={text[:40]!r}, accepted {accepted}; send one of these", "bad_option")
    return seconds
