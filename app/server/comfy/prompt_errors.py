"""Checking a prompt that came over ComfyUI's API, with every error in ComfyUI's shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.graph.document import Node, Workflow
from app.graph.errors import Problem, WorkflowError
from app.graph.graph import Graph
from app.graph.modes import active
from app.graph.plan import plan
from app.graph.registry import Registry
from app.graph.validation import validate
from app.server.comfy.input_config import input_config
from app.server.comfy.node_faults import Fault, circle, fault_of, refused, without_folders
from app.server.comfy.prompt_node import PromptNode, PromptReader
from app.server.comfy.prompt_reach import MAX_DEPENDENTS, Reach

_CIRCLES = frozenset({"competing_loops", "mixed_use", "feedback_into_plain_input"})
_PLANNING_ROUNDS = 20
"""How often what is left is planned again after outputs with circles were taken out. Every round but the last few
finds all circles of one kind, so that real workflows need two or three."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A prompt after its check.

    workflow: what is run: values cast, unknown inputs left out. Empty when there is an `error` about the whole prompt.
    prompt: the client's prompt with the casts applied and everything else kept, as history gives it back.
    outputs: ids of the output nodes that are valid and will run, in the prompt's order.
    node_errors: {node id: {"errors", "dependent_outputs", "class_type"}}.
    error: {"type", "message", "details", "extra_info"}; None when at least one output is valid.
    """

    workflow: Workflow
    prompt: dict[str, Any]
    outputs: tuple[str, ...]
    node_errors: dict[str, Any]
    error: dict[str, Any] | None


def check_prompt(prompt: Any, registry: Registry, targets: list[str] | None = None) -> Checked:
    """Check a prompt of any JSON shape; it never raises.

    prompt: the body's `prompt`, None when it has none. targets: the body's `partial_execution_targets`: of the output
    nodes only these; None for all.
    """
    prompt = _active(prompt, registry)
    error = _why_no_prompt(prompt) or _missing_node_type(prompt, registry)
    if error is not None:
        return _rejected(prompt, error)
    outputs = _outputs(prompt, registry, targets)
    if not outputs:
        return _rejected(prompt, top_error("prompt_no_outputs", "Prompt has no outputs"))
    check = _Check(outputs, Reach(outputs, PromptReader(prompt, registry).read))
    workflow = Workflow({node_id: check.node(node_id, data) for node_id, data in prompt.items()})
    check.validate(workflow, registry)
    good = check.plan()
    error = None if good else check.error()
    return Checked(workflow, check.coerced(prompt), good, check.node_errors(), error)


def _active(prompt: Any, registry: Registry) -> Any:
    """Return a prompt without muted and bypassed nodes, as ComfyUI's editor sends it: here they may still be in it."""
    if not isinstance(prompt, dict) or not any(isinstance(node, dict) and "mode" in node for node in prompt.values()):
        return prompt
    try:
        return active(Workflow.parse({"nodes": prompt}), registry).to_json()["nodes"]
    except WorkflowError:  # it is refused below for what is wrong with it, muted or not
        nodes = {node_id: node for node_id, node in prompt.items() if isinstance(node, dict)}
        return prompt | {node_id: {k: v for k, v in node.items() if k != "mode"} for node_id, node in nodes.items()}


def top_error(kind: str, message: str, details: str = "", **extra_info: Any) -> dict[str, Any]:
    """Return an error about a whole prompt as clients read it."""
    return {"type": kind, "message": message, "details": details, "extra_info": extra_info}


def _rejected(prompt: Any, error: dict[str, Any]) -> Checked:
    return Checked(Workflow({}), prompt if isinstance(prompt, dict) else {}, (), {}, error)


def _why_no_prompt(prompt: Any) -> dict[str, Any] | None:
    if isinstance(prompt, dict):
        return None
    message = "No prompt provided"
    found = f"found a {type(prompt).__name__}, accepted an object of nodes by id; send a workflow in API format"
    return top_error("no_prompt", message, message if prompt is None else found)


def _missing_node_type(prompt: Mapping[str, Any], registry: Registry) -> dict[str, Any] | None:
    """Return the error of the first node whose type is missing or unknown, or None."""
    for node_id, data in prompt.items():
        node = data if isinstance(data, dict) else {}
        title = Node(node_id, "", {}, node).title or None
        kind = node.get("class_type")
        if not isinstance(kind, str):
            reason = "has no class_type. The workflow may be corrupted or a custom node is missing."
            message = f"Node '{title or f'ID #{node_id}'}' {reason}"
            kind = None
        elif registry.get(kind) is None:
            title = title or kind
            message = f"Node '{title}' not found. The custom node may not be installed."
        else:
            continue
        place = {"node_id": node_id, "class_type": kind, "node_title": title}
        return top_error("missing_node_type", message, f"Node ID '#{node_id}'", **place)
    return None


def _outputs(prompt: Mapping[str, Any], registry: Registry, targets: Any) -> tuple[str, ...]:
    """Return the ids of the output nodes to run, in the prompt's order."""
    wanted = {target for target in targets if isinstance(target, str)} if isinstance(targets, list) else set()
    return tuple(
        node_id
        for node_id, data in prompt.items()
        if (node_type := registry.get(data["class_type"])) is not None
        and node_type.output_node
        and (targets is None or node_id in wanted)
    )


class _Check:
    """The check of one prompt: faults by node, and which outputs they spoil."""

    def __init__(self, outputs: tuple[str, ...], reach: Reach) -> None:
        self._outputs = outputs
        self._reach = reach
        self._graph: Graph = {}
        self._is_output = frozenset(outputs)
        self._met = {node_id: place for place, node_id in enumerate(reach.nodes)}
        self._spoiled: set[str] = set()
        self._faults: dict[str, list[Fault]] = {}
        for node_id, node in reach.nodes.items():
            for fault in node.faults:
                self._add(node_id, fault)

    def node(self, node_id: str, data: Mapping[str, Any]) -> Node:
        """Return a node as it is run; one that no output needs is kept as it came."""
        read = self._reach.nodes.get(node_id)
        if read is not None:
            return read.node
        extra = {key: value for key, value in data.items() if key not in ("class_type", "inputs")}
        inputs = data.get("inputs")
        return Node(node_id, data["class_type"], inputs if isinstance(inputs, dict) else {}, extra)

    def coerced(self, prompt: Mapping[str, Any]) -> dict[str, Any]:
        """Return the prompt with the values that were cast."""
        read = self._reach.nodes
        return {
            node_id: {**data, "inputs": inputs}
            if node_id in read and (inputs := read[node_id].inputs) is not None
            else data
            for node_id, data in prompt.items()
        }

    def validate(self, workflow: Workflow, registry: Registry) -> None:
        """Add what our own validation finds, where casting has not already found something."""
        self._graph, problems = validate(workflow, registry, self._outputs)
        known = {(node_id, fault.input) for node_id, faults in self._faults.items() for fault in faults}
        for problem in problems:
            read = self._reach.nodes[problem.node]
            if not read.is_unread and (problem.node, problem.input) not in known:
                self._add(problem.node, self._fault(read, problem))

    def plan(self) -> tuple[str, ...]:
        """Add what our own planning finds in what is still good; return the outputs that are left."""
        for _ in range(_PLANNING_ROUNDS):
            problems = self._planning_problems()
            before = len(self._spoiled)
            for problem in problems:
                self._add_circle(problem)
            if len(self._spoiled) == before:
                break
        # Whatever is still refused sits at no node of its own: the outputs cannot be told apart any more.
        for problem in self._planning_problems():
            for output in self._good():
                self._add(output, refused("", problem.message))
        return self._good()

    def _good(self) -> tuple[str, ...]:
        return tuple(output for output in self._outputs if output not in self._spoiled)

    def _planning_problems(self) -> tuple[Problem, ...]:
        needed = self._reach.needed_by(self._good())
        left = {node_id: node for node_id, node in self._graph.items() if node_id in needed}
        try:
            plan(left)
        except WorkflowError as error:
            return error.problems
        return ()

    def _add(self, node_id: str, fault: Fault) -> None:
        self._faults.setdefault(node_id, []).append(fault)
        self._reach.spoil(node_id, self._spoiled)

    def _fault(self, read: PromptNode, problem: Problem) -> Fault:
        source = self._graph[read.node.id].links.get(problem.input)
        received = self._graph[source.node].output(source.output).type if source is not None else None
        value = (read.inputs or {}).get(problem.input)
        return fault_of(problem, read.port(problem.input), value, received)

    def _add_circle(self, problem: Problem) -> None:
        if problem.code == "cycle_without_loop":
            nodes = self._circle_through(problem.node)
            names = [f"{node_id} ({self._graph[node_id].type.name})" for node_id in [*nodes, nodes[0]]]
            for node_id in nodes:
                self._add(node_id, circle(node_id, nodes, " -> ".join(names)))
        elif problem.code in _CIRCLES:
            self._add(problem.node, circle(problem.node, [problem.node], problem.message))
        else:
            self._add(problem.node, refused(problem.input, problem.message))

    def _circle_through(self, start: str) -> list[str]:
        """Return a shortest circle through a node, no loop node in it, against the wires, first met node first."""
        came_from: dict[str, str] = {}
        queue = [start]
        for node_id in queue:
            for source in self._graph[node_id].links.values():
                if source.node == start:
                    path = [node_id]
                    while path[-1] != start:
                        path.append(came_from[path[-1]])
                    path.reverse()
                    first = path.index(min(path, key=self._met.__getitem__))
                    return path[first:] + path[:first]
                if source.node not in came_from and not self._graph[source.node].type.is_loop:
                    came_from[source.node] = node_id
                    queue.append(source.node)
        return [start]

    def error(self) -> dict[str, Any]:
        """Return the error of a prompt without a valid output: it repeats what is wrong with the outputs themselves."""
        faults = [fault for output in self._outputs for fault in self._shown(output)]
        details = "\n".join(f"{fault.message}: {fault.details}" for fault in faults)
        return top_error("prompt_outputs_failed_validation", "Prompt outputs failed validation", details)

    def node_errors(self) -> dict[str, Any]:
        """Return the errors of every node that has some."""
        dependents = self._reach.dependents(self._spoiled)
        entries: dict[str, Any] = {}
        room = MAX_DEPENDENTS
        for node_id in self._faults:
            indices = sorted(dependents[node_id])[:room]
            room -= len(indices)
            entries[node_id] = {
                "errors": [fault.to_json() for fault in self._shown(node_id)],
                "dependent_outputs": [self._outputs[index] for index in indices],
                "class_type": self._reach.nodes[node_id].type.name,
            }
        return entries

    def _shown(self, node_id: str) -> list[Fault]:
        """Return a node's faults in the order of its inputs."""
        node = self._reach.nodes[node_id]
        place = {port.name: index for index, port in enumerate((node.ports or node.type.ports).inputs)}
        faults = sorted(self._faults.get(node_id, ()), key=lambda fault: place.get(fault.input, -1))
        return [self._named(node_id, fault) for fault in faults]

    def _named(self, node_id: str, fault: Fault) -> Fault:
        """Return a fault; an exception by the name that ComfyUI gives it at an output or further up."""
        if fault.type:
            return fault
        details = without_folders(fault.details)
        if node_id in self._is_output:
            message = "Exception when validating node"
            return fault._replace(type="exception_during_validation", message=message, details=details)
        consumer, name = self._reach.wired_by[node_id]
        read = self._reach.nodes[consumer]
        port = read.port(name)
        extra_info = {
            "input_name": name,
            "input_config": input_config(port) if port is not None else None,
            "exception_message": details,
            **fault.extra_info,
            "linked_node": (read.inputs or {}).get(name),
        }
        message = "Exception when validating inner node"
        return Fault(fault.input, "exception_during_inner_validation", message, details, extra_info)
