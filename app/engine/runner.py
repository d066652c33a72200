"""One node of a plan, ready to run again and again: its literals, the slots it reads and the slots it fills."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from app.engine.cancel import CancelToken, RunCancelled
from app.engine.context import NodeContext
from app.engine.lanes import Pair
from app.graph.errors import InputError, Problem, WorkflowError
from app.graph.graph import GraphNode
from app.graph.node import Array, NodeInstance
from app.graph.plan import Fold

log = logging.getLogger(__name__)

_NUMBERS = frozenset({int, float, bool})


class NodeRunner:
    """One node during one attempt at a run.

    values: every output of the graph, by slot; shared by all runners.
    base: slot of the node's first output.
    literals: value by input name; a live override of an input that is read on every pass changes it here.
    seconds: wall time spent in this node so far.
    """

    __slots__ = (
        "_lane_rules",
        "_links",
        "_make_context",
        "_output_count",
        "base",
        "cancel",
        "context",
        "folds",
        "instance",
        "literals",
        "node",
        "seconds",
        "slots",
        "values",
    )

    def __init__(
        self,
        node: GraphNode,
        values: list[Any],
        base_by_node: dict[str, int],
        make_context: Callable[[GraphNode], NodeContext],
        cancel: CancelToken,
    ) -> None:
        self.node = node
        self.values = values
        self.base = base_by_node[node.id]
        self.cancel = cancel
        self.seconds = 0.0
        self.folds: tuple[tuple[NodeRunner, str], ...] | None = None
        self.instance: NodeInstance | None = None
        self.context: NodeContext | None = None
        self._make_context = make_context
        self._output_count = len(node.ports.outputs)
        # A component makes what its model's port takes of a number; all others get a plain tensor.
        takes_arrays = set()
        if node.type.ports_of is None or node.type.is_loop:
            takes_arrays = {port.name for port in node.ports.inputs if port.type.kind == "TENSOR"}
        self._lane_rules = {port.name: port.pair for port in node.ports.inputs}
        self.slots = {name: base_by_node[source.node] + source.output for name, source in node.links.items()}
        self._links = tuple((name, slot, name in takes_arrays) for name, slot in self.slots.items())
        self.literals = {
            name: as_array(value) if name in takes_arrays and value is not None else value
            for name, value in node.literals.items()
        }

    def run(self) -> None:
        """Run the node once and fill its slots. Raises WorkflowError or RunCancelled."""
        if self.cancel.is_set:
            raise RunCancelled
        started = perf_counter()
        inputs: dict[str, Any] = {}
        try:
            inputs, is_paired = self.gather()
            instance = self.instance or self.prepare()
            outputs = self._run_lanes(instance, inputs) if is_paired else instance.run(inputs, 0)
        except (WorkflowError, RunCancelled):
            raise
        except KeyboardInterrupt as error:
            raise RunCancelled from error
        except (Exception, SystemExit) as error:
            raise WorkflowError([self.problem(error, inputs)]) from error
        finally:
            self.seconds += perf_counter() - started
        self.fill(outputs)

    def gather(self) -> tuple[dict[str, Any], bool]:
        """Return the node's inputs and whether one to be lifted holds a guidance pair. Raises InputError."""
        inputs = self.literals.copy()
        values = self.values
        is_paired = False
        for name, slot, takes_array in self._links:
            value = values[slot]
            if type(value) is Pair:
                rule = self._lane_rules[name]
                if rule == "refuse":
                    fix = "fold it with a Guidance Combine node first"
                    raise InputError(name, found="a guidance pair", accepted="a single value", fix=fix)
                is_paired = is_paired or rule == "lift"
            elif takes_array and type(value) in _NUMBERS:
                value = as_array(value)
            inputs[name] = value
        return inputs, is_paired

    def prepare(self) -> NodeInstance:
        """Make the node's instance: it is needed now. Raises WorkflowError."""
        self.context = self._make_context(self.node)
        try:
            self.instance = self.node.type.prepare(self.context, self.literals)
        except Exception as error:
            raise WorkflowError([self.problem(error, self.literals)]) from error
        return self.instance

    def fill(self, outputs: Sequence[Any]) -> None:
        """Put the outputs into the node's slots. Raises WorkflowError when they are not as many as declared."""
        base = self.base
        if len(outputs) != self._output_count:
            raise WorkflowError([self._miscounted(len(outputs))])
        for offset, value in enumerate(outputs):
            self.values[base + offset] = value

    def _miscounted(self, count: int) -> Problem:
        node = self.node
        message = f"gave {count} outputs, declared {self._output_count}; mend the node type {node.type.name}"
        return Problem(message, "node_failed", node.id, node.title)

    def current(self, name: str) -> Any:
        """Return the value that an input has now."""
        slot = self.slots.get(name)
        return self.literals.get(name) if slot is None else self.values[slot]

    def reset(self) -> None:
        """Forget the carried state: the innermost loop around the node starts."""
        if self.instance is not None:
            self.instance.reset()

    def close(self) -> None:
        """Give back what the node holds."""
        if self.instance is not None:
            self.instance.close()
            self.instance = None

    def _run_lanes(self, instance: NodeInstance, inputs: dict[str, Any]) -> Sequence[Any]:
        lifted = {name for name, rule in self._lane_rules.items() if rule == "lift"}
        if self.folds is not None and all(runner.current(cfg) == 1 for runner, cfg in self.folds):
            return instance.run(_lane(inputs, lifted, "positive"), 0)
        run_pair = getattr(instance, "run_pair", None)
        if run_pair is not None:
            paired: Sequence[Any] = run_pair(inputs)
            return paired
        positive = instance.run(_lane(inputs, lifted, "positive"), 0)
        negative = instance.run(_lane(inputs, lifted, "negative"), 1)
        return [Pair(*lanes) for lanes in zip(positive, negative, strict=True)]

    def problem(self, error: BaseException, inputs: dict[str, Any]) -> Problem:
        """Return what the user is told about an error of this node; anything unforeseen goes to the log."""
        node = self.node
        step = "" if self.context is None or self.context.step is None else f" (at step {self.context.step + 1})"
        if isinstance(error, InputError):
            return Problem(error.message + step, error.code, node.id, node.title, error.input)
        if isinstance(error, MemoryError):
            message = (
                f"ran out of memory{_detail(error)}{step} with inputs {describe(inputs)}; use smaller sizes or a "
                "smaller batch, or close other programs"
            )
            return Problem(message, "out_of_memory", node.id, node.title)
        log.error("node %s (%s) failed%s", node.id, node.type.name, step, exc_info=error)
        what = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
        message = (
            f"failed with {type(error).__name__}: {what}{step}, inputs were {describe(inputs)}; check what is wired "
            "into this node, the log has the details"
        )
        return Problem(message, "node_failed", node.id, node.title)


def as_array(value: Any) -> Array:
    """Return a number, bool or nested list as an array: float32, int64 or bool."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 and not isinstance(value, np.ndarray) else array


def describe(inputs: dict[str, Any]) -> str:
    """Return shapes, dtypes and values of inputs, short enough for a sentence."""
    return ", ".join(f"{name} {_describe_value(value)}" for name, value in inputs.items()) or "none"


def _describe_value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, Pair):
        return f"pair of {_describe_value(value.positive)}"
    text = repr(value) if isinstance(value, int | float | str | bool | list | None) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."


def _detail(error: BaseException) -> str:
    return f" ({str(error).splitlines()[0]})" if str(error) else ""


def _lane(inputs: dict[str, Any], lifted: set[str], lane: str) -> dict[str, Any]:
    return {
        name: getattr(value, lane) if type(value) is Pair and name in lifted else value
        for name, value in inputs.items()
    }


def link_folds(runners: dict[str, NodeRunner], folds: dict[str, frozenset[Fold] | None]) -> None:
    """Tell every runner where the pairs that it gives are folded."""
    for node, found in folds.items():
        if found is not None:
            runners[node].folds = tuple((runners[fold.node], fold.cfg) for fold in found)
