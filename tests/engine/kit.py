"""A small registry and document builder for engine tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from app.engine.engine import Engine
from app.engine.events import Event, Output
from app.engine.run import RunRecord
from app.folders import Folders
from app.graph import socket
from app.graph.document import Workflow
from app.graph.node import Array, Help, Out, Range, node
from app.graph.registry import Registry
from nodes import builtin_registry

calls: Counter[str] = Counter()
"""How often each counting node has run, by its `name` input."""


@node(category="test")
def count_calls(
    value: Annotated[Any, Help("passed through")], name: Annotated[str, Help("what to count as")] = "count"
) -> Annotated[Any, Out("value")]:
    """Pass a value through and count the call."""
    calls[name] += 1
    return value


@node(category="test", output_node=True)
def collect(context: Any, value: Annotated[Any, Help("what to show")]) -> None:
    """Show a value as an output."""
    context.emit(Output(context.node, "value", value=value, step=context.step))


@node(category="test")
def steered_add(
    value: Annotated[Array, Help("tensor"), socket.TENSOR],
    amount: Annotated[float, Range(-100, 100, help="added on every step", role="steerable")] = 0.0,
) -> Annotated[Array, Out("value"), socket.TENSOR]:
    """Add a live amount."""
    return value + np.float32(amount)


@node(category="test")
def fail(
    value: Annotated[Any, Help("passed through")], at: Annotated[int, Range(0, 1000, help="value that fails")] = 0
) -> Annotated[Any, Out("value")]:
    """Raise an unforeseen error at one value."""
    if value == at:
        raise RuntimeError("boom")
    return value


def registry(*node_types: Any, folders: Folders | None = None) -> Registry:
    """Return the built-in registry with the nodes above and any others."""
    made = builtin_registry(folders or Folders())
    for function in (count_calls, collect, steered_add, fail, *node_types):
        made.add(function.node_type)
    return made


def engine(folder: Path, *node_types: Any, models: Path | None = None) -> Engine:
    """Return an engine that writes into a folder."""
    folders = Folders(output=folder) if models is None else Folders(models=(models,), output=folder)
    return Engine(registry(*node_types, folders=folders), folders)


def workflow(**nodes: tuple[str, dict[str, Any]]) -> Workflow:
    """Return a workflow from `id=(class_type, inputs)`; an input such as "->other.output" is a link."""
    return Workflow.parse(
        {
            "version": 1,
            "nodes": {
                name: {"class_type": class_type, "inputs": {key: _value(value) for key, value in inputs.items()}}
                for name, (class_type, inputs) in nodes.items()
            },
        }
    )


def _value(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("->"):
        source, _, output = value[2:].partition(".")
        return [source, output]
    return value


def values(record: RunRecord, node_id: str = "out") -> list[Any]:
    """Return what a `collect` node showed, in order. Fails with the run's problems if it did not end well."""
    assert record.status == "done", [str(problem) for problem in record.problems]
    return [output.value for output in record.outputs if output.node == node_id]


def recorder() -> tuple[list[Event], Callable[[Event], None]]:
    """Return a list and a function that appends every event to it."""
    events: list[Event] = []
    return events, events.append
