"""What several subcommands need: folders, registry, workflow, error lines."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from platformdirs import user_data_path, user_log_path

from app.extensions import load_extensions
from app.folders import BUNDLED_INPUTS, BUNDLED_MODELS, BUNDLED_WORKFLOWS, Folders
from app.graph.changes import split_place
from app.graph.comfy import load, read_any
from app.graph.document import Workflow
from app.graph.errors import Problem, WorkflowError
from app.graph.registry import Registry, nearest
from app.png import read_workflow
from nodes import builtin_registry


def folders_of(options: argparse.Namespace, workflow: Path | None = None) -> Folders:
    """Return the folders that the options name, the workflow's own and the bundled ones. Raises WorkflowError."""
    for folder in (*options.models, *options.inputs):
        if not folder.is_dir():
            raise WorkflowError.of(f"found no folder {str(folder)!r}; give one that exists with --models or --inputs")
    own = () if workflow is None else (workflow.parent,)
    return Folders(
        models=(*options.models, BUNDLED_MODELS),
        inputs=(*options.inputs, *own, BUNDLED_INPUTS),
        output=getattr(options, "out", Path("output")),
    )


def registry_of(options: argparse.Namespace, folders: Folders) -> Registry:
    """Return the registry of all node types; a broken extension is reported on stderr and in the log, then skipped."""
    registry = builtin_registry(folders)
    custom_nodes = options.custom_nodes or user_data_path("ortloom", appauthor=False) / "custom_nodes"
    for report in load_extensions(registry, custom_nodes):
        if report.error:
            print(f"extension {report.name} is skipped: {report.error}", file=sys.stderr)
            logging.getLogger(__name__).error("extension %s: %s", report.name, report.traceback)
    return registry


def workflow_path(name: str) -> Path:
    """Return the file of a workflow given by path or by a template's name. Raises WorkflowError."""
    path = Path(name)
    if path.is_file():
        return path
    templates = {template.stem: template for template in BUNDLED_WORKFLOWS.glob("*.json")}
    if name in templates:
        return templates[name]
    if path.suffix or path.parent != Path():
        found = "a folder" if path.is_dir() else "no such file"
        raise WorkflowError.of(
            f"found {found} at {name!r}, accepted a JSON or PNG file; check the path", "file_missing"
        )
    near = nearest(name, templates)
    hint = f"did you mean {' or '.join(near)}?" if near else f"templates are {', '.join(sorted(templates))}"
    raise WorkflowError.of(f"found no file and no template {name!r}; {hint}", "file_missing")


def load_workflow(path: Path) -> Workflow:
    """Return the workflow in a JSON or PNG file. Raises WorkflowError."""
    data = path.read_bytes()
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return read_any(read_workflow(path))
    return load(data)


def apply_changes(workflow: Workflow, changes: Iterable[str], registry: Registry) -> Workflow:
    """Return the workflow with every NODE.INPUT=VALUE of --set applied. Raises WorkflowError.

    A value is JSON, or else a text; for an input that takes a text it is that text, whatever it looks like.
    """
    values: dict[tuple[str, str], Any] = {}
    for change in changes:
        place, equals, text = change.partition("=")
        node, dot, input_name = place.partition(".")
        if not (equals and dot and node and input_name):
            accepted = 'NODE.INPUT=VALUE, e.g. --set "Denoise.cfg=3"'
            raise WorkflowError.of(f"found --set {change!r}, accepted {accepted}; write it so", "bad_set")
        node_id, name = split_place(workflow, place)
        node_type = registry.get(workflow.nodes[node_id].class_type)
        port = node_type.ports.input(name) if node_type else None
        values[node_id, name] = text if port is not None and port.type.kind == "STRING" else _value(text)
    return workflow.with_inputs(values)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def start_log() -> None:
    """Send the log to a file in the user's log folder, so that no traceback reaches the terminal."""
    folder = user_log_path("ortloom", appauthor=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handler: logging.Handler = logging.FileHandler(folder / "ortloom.log", encoding="utf-8")
    except OSError:
        handler = logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def print_problems(problems: Iterable[Problem]) -> int:
    """Print one problem a line on stderr; returns the exit code 1."""
    for problem in problems:
        print(str(problem).replace("\n", " "), file=sys.stderr)
    return 1
