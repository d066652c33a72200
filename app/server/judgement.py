"""What is wrong with a workflow, and which loops it has: asked by every route that runs or checks one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from app.graph.document import Workflow
from app.graph.errors import Problem, WorkflowError
from app.graph.outline import outline
from app.graph.plan import plan
from app.graph.registry import Registry
from app.graph.validation import validate
from app.server.node_library import NodeLibrary


@dataclass(frozen=True, slots=True)
class Judgement:
    """problems: everything that keeps the workflow from running. loops: its `outline`, if it can be planned."""

    problems: tuple[Problem, ...] = ()
    loops: list[dict[str, Any]] = field(default_factory=list)


async def judge(library: NodeLibrary, workflow: Workflow, targets: Iterable[str] | None = None) -> Judgement:
    """Validate and plan a workflow on another thread: models' signatures are read from files."""
    registry = await library.registry_for(workflow)
    return await asyncio.to_thread(_judge, registry, workflow, targets)


async def check(library: NodeLibrary, workflow: Workflow, targets: Iterable[str] | None = None) -> None:
    """Raise WorkflowError with everything that keeps a workflow from running."""
    problems = (await judge(library, workflow, targets)).problems
    if problems:
        raise WorkflowError(problems)


def _judge(registry: Registry, workflow: Workflow, targets: Iterable[str] | None) -> Judgement:
    graph, problems = validate(workflow, registry, targets)
    try:
        return Judgement(tuple(problems), outline(plan(graph)))
    except WorkflowError as error:
        # Where inputs are wrong, wrong loops may only follow from that.
        return Judgement(tuple(problems) or error.problems)
