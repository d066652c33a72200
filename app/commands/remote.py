"""`ortloom run --server URL`: run a workflow on a server and fetch its outputs."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.client import Client, ClientError, RunHandle, RunResult
from app.commands.progress import ProgressBar
from app.commands.run import CANCELLED, report
from app.commands.setup import apply_changes, folders_of, load_workflow, print_problems, registry_of, workflow_path
from app.engine.events import Cached, Event, NodeStarted, Output, Restarted, StepFinished
from app.engine.run import RunRecord
from app.folders import Folders
from app.graph.document import Workflow
from app.graph.errors import InputError, WorkflowError

CANCEL_S = 5.0
"""How long the server may take to hear that a run is not wanted any more."""


def main(options: argparse.Namespace) -> int:
    """Run the workflow there; returns 0, 1 with one error a line on stderr, or 130 when stopped by ctrl-C."""
    try:
        if options.device != "auto":
            accepted = "none with --server; the server was started with its own"
            raise WorkflowError.of(
                f"found --device {options.device!r}, accepted {accepted}; leave it out", "bad_option"
            )
        path = workflow_path(options.workflow)
        folders = folders_of(options, path)
        workflow = apply_changes(load_workflow(path), options.changes, registry_of(options, folders))
        own = replace(folders, inputs=(*options.inputs, path.parent))
        token = options.token or os.environ.get("ORTLOOM_TOKEN") or None
        return asyncio.run(_run(Client(options.server, token), workflow, own, path.stem, as_json=options.json))
    except (WorkflowError, ClientError) as error:
        return print_problems(error.problems)
    except KeyboardInterrupt:  # a second ctrl-C, while the run was being cancelled
        return _stopped()


async def _run(client: Client, workflow: Workflow, folders: Folders, name: str, *, as_json: bool) -> int:
    """Run and report. asyncio turns ctrl-C into the cancellation of this. Raises ClientError."""
    async with client:
        submitting = None
        try:
            workflow = await _with_inputs(client, workflow, folders)
            # Shielded: a run that the server has taken while ctrl-C came must be known to be cancelled.
            submitting = asyncio.create_task(client.submit(workflow, name=name))
            run = await asyncio.shield(submitting)
            result = await _follow(run, ProgressBar(workflow))
        except asyncio.CancelledError:
            if submitting is not None:
                await _cancel(submitting)
            return _stopped()
        if result.state == "cancelled":  # by somebody else
            return _stopped()
        if result.state == "failed":
            return print_problems(result.problems)
        try:
            outputs = [await _fetched(client, output, folders.output) for output in result.outputs]
        except asyncio.CancelledError:
            return _stopped()
    _report(result, outputs, as_json=as_json)
    return 0


async def _with_inputs(client: Client, workflow: Workflow, folders: Folders) -> Workflow:
    """Send the input files that lie here and not on the server; return the workflow with their names there."""
    missing = await client.missing(workflow)
    sent: dict[str, str] = {}
    changes: dict[tuple[str, str], Any] = {}
    for entry in missing["files"]:
        name = entry["name"]
        if name not in sent:
            try:
                path = folders.input(name)
            except InputError:  # not here either: the server says so better
                continue
            if not path.is_file():
                continue
            sent[name] = await client.upload(path, name)
        if sent[name] != name:
            changes[entry["node"], entry["input"]] = sent[name]
    return workflow.with_inputs(changes)


async def _follow(run: RunHandle, progress: ProgressBar) -> RunResult:
    try:
        async for event in run.events():
            if isinstance(event, dict) and (shown := engine_event(event)) is not None:
                progress(shown)
    finally:
        progress.close()
    return await run.result()


def engine_event(event: Mapping[str, Any]) -> Event | None:
    """Return the engine's event that a server's tells of, if the progress bar shows it."""
    match event["type"]:
        case "step_finished":
            return StepFinished(event["node"], event["step"], event["steps"], event["seconds"])
        case "node_started":
            return NodeStarted(event["node"])
        case "restarted":
            return Restarted(event["node"])
        case "cached":
            return Cached(tuple(event["nodes"]))
    return None


async def _cancel(submitting: asyncio.Task[RunHandle]) -> None:
    """End the run on the server, as far as that can be done in a few seconds."""
    try:
        async with asyncio.timeout(CANCEL_S):
            await (await submitting).cancel()
    except (ClientError, TimeoutError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it does not answer"
        print(f"the run may go on at the server: {reason}", file=sys.stderr)


async def _fetched(client: Client, output: Mapping[str, Any], folder: Path) -> Output:
    """Return an output with its file, if it has one, in a folder here; previews in `previews`, as local runs do."""
    path = None
    if output.get("path"):
        place = folder / "previews" if output["type"] == "preview" else folder
        path = str(await client.download(output, place))
    return Output(output["node"], output["type"], path, output.get("value"), output.get("step"))


def _report(result: RunResult, outputs: Iterable[Output], *, as_json: bool) -> None:
    """Print what a local run prints."""
    outputs = list(outputs)
    record = RunRecord(
        "done",
        [output for output in outputs if output.type != "preview"],
        (),
        result.seconds,
        result.seconds_by_node,
        result.step_seconds_by_loop,
        result.cached,
        result.session_loads,
        result.session_hits,
    )
    report(record, [output for output in outputs if output.type == "preview"], as_json=as_json)


def _stopped() -> int:
    print("stopped", file=sys.stderr)
    return CANCELLED
