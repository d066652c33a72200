"""Runs told to WebSockets of ComfyUI's API: its messages, in its order, to the client that submitted."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from app.server.active_run import ActiveRun, RunObserver
from app.server.comfy.run_messages import end_message
from app.server.comfy.ui_output import ui_outputs
from app.server.outgoing import Outgoing

CUMULATIVE_NODES = 32
"""progress_state repeats every node that has begun, as ComfyUI does, while a run has no more of them than this.

Beyond, it holds what changed only: repeating all of them costs bytes and time quadratic in the nodes."""

JPEG = (1).to_bytes(4, "big")
PREVIEW_IMAGE = (1).to_bytes(4, "big")
PREVIEW_IMAGE_WITH_METADATA = (4).to_bytes(4, "big")


class ComfySocket:
    """One connection. wants_metadata: the client announced that it reads previews with metadata."""

    def __init__(self, client_id: str, outgoing: Outgoing) -> None:
        self.client_id = client_id
        self.outgoing = outgoing
        self.wants_metadata = False

    def send(self, kind: str, data: Mapping[str, Any]) -> None:
        """Send one message."""
        self.outgoing.text(message(kind, data))


def message(kind: str, data: Mapping[str, Any]) -> bytes:
    """Return a message as it goes over the wire."""
    return json.dumps({"type": kind, "data": data}).encode()


class ComfyFeed(RunObserver):
    """Every connection by client id, and how far the run in hand has been told."""

    def __init__(self) -> None:
        self._sockets: dict[str, set[ComfySocket]] = {}
        self._remaining = 0
        self._run: ActiveRun | None = None
        self._has_told_cached = False
        self._shown: dict[str, dict[str, Any]] = {}
        self._told_from_cache: set[str] = set()
        self._just_ended: ActiveRun | None = None

    def add(self, socket: ComfySocket) -> None:
        """Connect: the client hears the queue's length, and what runs now if that is its own."""
        self._sockets.setdefault(socket.client_id, set()).add(socket)
        socket.send("status", {**self._status(), "sid": socket.client_id})
        run = self._run
        if run is not None and run.client_id == socket.client_id and run.current is not None:
            socket.send("executing", _executing(run.current, run))

    def remove(self, socket: ComfySocket) -> None:
        """Disconnect; other connections of the same client go on hearing."""
        sockets = self._sockets.get(socket.client_id, set())
        sockets.discard(socket)
        if not sockets:
            self._sockets.pop(socket.client_id, None)

    def queue_changed(self, *, running: int, queued: int, paused: bool) -> None:
        """See RunObserver."""
        self._remaining = running + queued
        self._broadcast("status", self._status())
        if self._just_ended is not None:  # clients wait for this end mark, which follows the status
            run, self._just_ended = self._just_ended, None
            self._to_client(run, "executing", {"node": None, "prompt_id": run.id})

    def run_started(self, run: ActiveRun) -> None:
        """See RunObserver."""
        if run.live:
            return
        self._run, self._has_told_cached = run, False
        self._shown.clear()
        self._told_from_cache.clear()
        self._to_client(run, "execution_start", _at(run))

    def run_event(self, run: ActiveRun, event: Mapping[str, Any]) -> None:
        """See RunObserver."""
        if run.live or not self._sockets or event["type"] in ("started", "restarted"):
            return
        self._tell_cached(run)
        match event["type"]:
            case "node_started":
                self._tell_executed(run)
                self._tell_progress(run, event["node"])
                self._to_client(run, "executing", _executing(event["node"], run))
            case "step_finished":
                self._tell_progress(run, event["node"])
                steps = event["steps"] or event["step"]
                data = {"value": event["step"], "max": steps, "prompt_id": run.id, "node": event["node"]}
                self._to_client(run, "progress", data, everyone=run.client_id is None)
            case "node_finished":
                self._tell_executed(run)
                self._tell_progress(run, event["node"])
            case "output":
                self._remember(event["output"])

    def run_preview(self, run: ActiveRun, event: Mapping[str, Any], picture: bytes) -> None:
        """See RunObserver."""
        if run.live or run.client_id is None or event["step"] is None:  # what is no step's comes as an output
            return
        for socket in self._sockets.get(run.client_id, ()):
            key = (run.id, event["node"], event["index"])
            socket.outgoing.preview(key, _preview_frame(run, event, picture, with_metadata=socket.wants_metadata))

    def run_ended(self, run: ActiveRun, record: Mapping[str, Any]) -> None:
        """See RunObserver."""
        if run.live:
            return
        for output in record.get("previews", ()):
            self._remember(output)
        self._tell_cached(run)
        if record["status"] == "done":
            self._tell_executed(run)
        kind, data = end_message(run, record)
        self._to_client(run, kind, data)
        self._run = None
        self._just_ended = run

    def _remember(self, output: Mapping[str, Any]) -> None:
        for node, shown in ui_outputs([output]).items():
            into = self._shown.setdefault(node, {})
            for key, items in shown.items():
                into.setdefault(key, []).extend(items)

    def _tell_cached(self, run: ActiveRun) -> None:
        """Tell once, before all else of a run, what need not be computed."""
        if not self._has_told_cached:
            self._has_told_cached = True
            self._to_client(run, "execution_cached", {"nodes": run.cached, **_at(run)})

    def _tell_executed(self, run: ActiveRun) -> None:
        """Tell what nodes have shown since the last time."""
        for node, shown in self._shown.items():
            data = {"node": node, "display_node": node, "output": shown, "prompt_id": run.id}
            self._to_client(run, "executed", data)
            if node in run.nodes and run.nodes[node].state == "cached":
                self._told_from_cache.add(node)
                self._tell_progress(run, node)
        self._shown.clear()

    def _tell_progress(self, run: ActiveRun, changed: str) -> None:
        told_of = self._told_from_cache
        begun = [node for node, progress in run.nodes.items() if progress.state != "cached" or node in told_of]
        told = begun if len(begun) <= CUMULATIVE_NODES else [changed]
        nodes = {node: _node_state(run, node) for node in told}
        self._to_client(run, "progress_state", {"prompt_id": run.id, "nodes": nodes}, everyone=run.client_id is None)

    def _status(self) -> dict[str, Any]:
        return {"status": {"exec_info": {"queue_remaining": self._remaining}}}

    def _broadcast(self, kind: str, data: Mapping[str, Any]) -> None:
        if self._sockets:
            payload = message(kind, data)
            for sockets in self._sockets.values():
                for socket in sockets:
                    socket.outgoing.text(payload)

    def _to_client(self, run: ActiveRun, kind: str, data: Mapping[str, Any], *, everyone: bool = False) -> None:
        if everyone:
            self._broadcast(kind, data)
        elif run.client_id is not None and (sockets := self._sockets.get(run.client_id)):
            payload = message(kind, data)
            for socket in sockets:
                socket.outgoing.text(payload)


def _now() -> int:
    return int(time.time() * 1000)


def _at(run: ActiveRun) -> dict[str, Any]:
    return {"prompt_id": run.id, "timestamp": _now()}


def _executing(node: str, run: ActiveRun) -> dict[str, Any]:
    return {"node": node, "display_node": node, "prompt_id": run.id}


def _names(run: ActiveRun, node: str) -> dict[str, Any]:
    names = {"node_id": node, "prompt_id": run.id, "display_node_id": node}
    return names | {"parent_node_id": None, "real_node_id": node}


def _node_state(run: ActiveRun, node: str) -> dict[str, Any]:
    progress = run.nodes[node]
    is_finished = progress.state in ("finished", "cached")
    value, most = float(progress.step or is_finished), float(progress.steps or max(progress.step, 1))
    state = "finished" if is_finished else "running"
    return {"value": most if is_finished else value, "max": most, "state": state, **_names(run, node)}


def _preview_frame(run: ActiveRun, event: Mapping[str, Any], picture: bytes, *, with_metadata: bool) -> bytes:
    if not with_metadata:
        return PREVIEW_IMAGE + JPEG + picture
    text = json.dumps({**_names(run, event["node"]), "image_type": event["mime"]}).encode()
    return PREVIEW_IMAGE_WITH_METADATA + len(text).to_bytes(4, "big") + text + picture
