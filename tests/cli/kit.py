"""Calling the command line in this process, on copies of the templates."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from app.cli import main

TEMPLATES = sorted(path.stem for path in (Path(__file__).parent.parent.parent / "workflows").glob("*.json"))
WORKFLOWS = Path(__file__).parent.parent.parent / "workflows"


class Result(NamedTuple):
    """What a command gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return what it printed as JSON."""
        return json.loads(self.out)


def ortloom(*arguments: str | Path) -> Result:
    """Run `ortloom` with arguments."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Result(code, out.getvalue(), err.getvalue())


def changed(folder: Path, template: str, change: Callable[[dict[str, Any]], None]) -> Path:
    """Write a template's document into a folder after changing its nodes, which are given by title."""
    document = json.loads((WORKFLOWS / f"{template}.json").read_text())
    nodes = {node["_meta"]["title"]: node for node in document["nodes"].values()}
    change(nodes)
    path = folder / "changed.json"
    path.write_text(json.dumps(document))
    return path


def node_id(template: str, title: str) -> str:
    """Return the id of a template's node."""
    document = json.loads((WORKFLOWS / f"{template}.json").read_text())
    return next(key for key, node in document["nodes"].items() if node["_meta"]["title"] == title)
