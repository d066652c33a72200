"""`ortloom run`: run a workflow and write its outputs."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from app.commands.progress import ProgressBar
from app.commands.setup import (
    apply_changes,
    folders_of,
    load_workflow,
    print_problems,
    registry_of,
    start_log,
    workflow_path,
)
from app.engine.engine import Engine
from app.engine.events import Event, Output, Preview
from app.engine.run import Run, RunRecord
from app.graph.errors import InputError, Problem, WorkflowError
from app.png import write_png
from app.runtime.providers import DEVICES

CANCELLED = 130
"""Exit code of a command stopped by ctrl-C, as shells have it."""


def main(options: argparse.Namespace) -> int:
    """Run the workflow; returns 0, 1 with one error a line on stderr, or 130 when stopped by ctrl-C."""
    start_log()
    if options.server is not None:
        from app.commands import remote

        return remote.main(options)
    if options.token is not None:
        return print_problems([Problem("found --token without --server; give the server's address, or leave it out")])
    try:
        check_device(options.device)
        path = workflow_path(options.workflow)
        folders = folders_of(options, path)
        registry = registry_of(options, folders)
        workflow = apply_changes(load_workflow(path), options.changes, registry)
        engine = Engine(registry, folders, device=options.device)
        progress = ProgressBar(workflow)
        previews = PreviewFiles(folders.output)

        def show(event: Event) -> None:
            progress(event)
            previews(event)

        run = engine.start(workflow, show)
    except WorkflowError as error:
        return print_problems(error.problems)
    record = _execute(run)
    progress.close()
    if record.status == "cancelled":
        print("stopped", file=sys.stderr)
        return CANCELLED
    if record.status == "failed":
        return print_problems(record.problems)
    report(record, previews.outputs, as_json=options.json)
    _report_devices(engine)
    return 0


def check_device(device: str) -> None:
    """Refuse a device that nobody knows. Raises WorkflowError."""
    if device not in DEVICES:
        message = f"found --device {device!r}, accepted one of {', '.join(DEVICES)}; choose one of them"
        raise WorkflowError.of(message, "not_in_choices")


class PreviewFiles:
    """Writes previews as numbered PNG files into the folder `previews` of the output folder."""

    def __init__(self, output: Path) -> None:
        self._folder = output / "previews"
        self.outputs: list[Output] = []

    def __call__(self, event: Event) -> None:
        """Take one event of the run. Raises InputError when a preview cannot be written."""
        if not isinstance(event, Preview):
            return
        name = f"{event.node}.png" if event.step is None else f"{event.node}_step{event.step + 1:04d}.png"
        path = self._folder / name
        try:
            write_png(path, event.image, None)
        except OSError as error:
            found = f"{path}, which cannot be written ({error.strerror})"
            fix = "choose another folder with --out"
            raise InputError("image", found=found, accepted="a place to write files", fix=fix) from error
        self.outputs.append(Output(event.node, "preview", str(path), step=event.step))


def _execute(run: Run) -> RunRecord:
    """Execute on a second thread: the main one stays free to hear ctrl-C while a session call runs."""
    previous = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: FrameType | None) -> None:
        run.cancel()

    worker = threading.Thread(target=run.execute, name="run")
    signal.signal(signal.SIGINT, stop)
    try:
        worker.start()
        while worker.is_alive():
            worker.join(0.2)
    finally:
        signal.signal(signal.SIGINT, previous)
    return run.record


def report(record: RunRecord, previews: list[Output], *, as_json: bool) -> None:
    """Print where the outputs are, or what they are, one a line; or all about the run as JSON."""
    outputs = [*record.outputs, *previews]
    if as_json:
        print(json.dumps(summary(record, outputs)))
        return
    for output in record.outputs:
        print(output.path or _shown(output.value))
    if previews:
        print(f"{len(previews)} previews in {Path(str(previews[0].path)).parent}")


def summary(record: RunRecord, outputs: list[Output]) -> dict[str, Any]:
    """Return what --json prints: outputs, timings in seconds, session counts, cached node ids."""
    return {
        "outputs": [_output_entry(output) for output in outputs],
        "timings": {
            "seconds": record.seconds,
            "nodes": record.seconds_by_node,
            "steps": record.step_seconds_by_loop,
        },
        "session_loads": record.session_loads,
        "session_hits": record.session_hits,
        "cached": record.cached,
    }


def _output_entry(output: Output) -> dict[str, Any]:
    entry = {"node": output.node, "type": output.type, "path": output.path}
    extras = {"value": output.value, "step": output.step}
    return entry | {key: value for key, value in extras.items() if value is not None}


def _report_devices(engine: Engine) -> None:
    """Say on stderr which models did not run on the device asked for, and why."""
    for session in engine.sessions.report():
        if session["fell_back"]:
            reasons = "; ".join(f"{device}: {reason}" for device, reason in session["why_not"].items())
            print(f"{session['path']} ran on {session['providers'][0]} ({reasons})", file=sys.stderr)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
