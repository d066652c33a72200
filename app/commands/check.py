"""`ortloom check`: say what is wrong with a workflow, without running it."""

from __future__ import annotations

import argparse

from app.commands.setup import (
    apply_changes,
    folders_of,
    load_workflow,
    print_problems,
    registry_of,
    start_log,
    workflow_path,
)
from app.graph.errors import WorkflowError
from app.graph.plan import LoopPlan, plan
from app.graph.validation import validate


def main(options: argparse.Namespace) -> int:
    """Return 0 and print a summary when the workflow can run, else print every problem and return 1."""
    start_log()
    try:
        path = workflow_path(options.workflow)
        registry = registry_of(options, folders_of(options, path))
        workflow = apply_changes(load_workflow(path), options.changes, registry)
        graph, problems = validate(workflow, registry)
        if problems:
            return print_problems(problems)
        planned = plan(graph)
    except WorkflowError as error:
        return print_problems(error.problems)
    loops = sum(graph[node].type.is_loop for node in planned.nodes())
    print(f"{options.workflow}: {len(graph)} nodes, {loops} loop{'' if loops == 1 else 's'}, ready to run")
    for item in planned.items:
        if isinstance(item, LoopPlan):
            inside = ", ".join(graph[node].title or node for node in item.nodes())
            print(f"  {graph[item.header].title or item.header} repeats: {inside}")
    return 0
