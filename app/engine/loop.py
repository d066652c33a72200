"""Running loops: the body once for every pass, live values read between passes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping, Sequence
from time import perf_counter
from typing import Any, Protocol, TypeAlias, cast

from app.engine.cancel import CancelToken, RunCancelled
from app.engine.context import NodeContext
from app.engine.events import Event, Steered, StepFinished
from app.engine.runner import NodeRunner
from app.graph.errors import WorkflowError
from app.graph.plan import LoopPlan


class LoopDriver(Protocol):
    """What a loop node may do with its body."""

    def run_body(self, per_step: Sequence[Any], step: int) -> None:
        """Run the body once. per_step: the header's per-step outputs in port order. step: from 0."""

    def feedback(self, name: str) -> Any:
        """Return the value of a feedback input after the pass."""

    def steer(self, name: str) -> Any:
        """Return the present value of a steerable input: live, or as computed by the pass that just ran."""

    def step_done(self, step: int, steps: int) -> None:
        """Report a finished step. step: from 1; steps: how many there will be, 0 when not known."""


class LoopInstance(Protocol):
    """One loop node during one run; takes the place of NodeInstance.run."""

    def run_loop(self, loop: LoopDriver, inputs: dict[str, Any]) -> Sequence[Any]:
        """Drive the body to the end; return the results (outputs that are not per step) in port order."""


class Steering:
    """Live changes: (node, input) -> value, put by any thread, taken by loops between passes.

    steered: the nodes on which a change acts already. is_waiting: whether any is still to be taken.
    """

    def __init__(self) -> None:
        self.steered: set[str] = set()
        self.is_waiting = False
        self._waiting: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def put(self, changes: Mapping[tuple[str, str], Any]) -> None:
        """Add changes; a newer one of the same input replaces an older."""
        with self._lock:
            self._waiting.update(changes)
            self.is_waiting = True

    def take(self, nodes: Container[str]) -> dict[tuple[str, str], Any]:
        """Return the changes of these nodes and wait with them no longer."""
        with self._lock:
            taken = {place: value for place, value in self._waiting.items() if place[0] in nodes}
            for place in taken:
                del self._waiting[place]
                self.steered.add(place[0])
            self.is_waiting = bool(self._waiting)
            return taken

    def first_waiting(self) -> str | None:
        """Return the node of a change that nobody has taken, or None."""
        with self._lock:
            return next((node for node, _ in self._waiting), None)


class LoopRunner:
    """A loop during one attempt at a run. step_seconds: wall time of each finished step."""

    def __init__(
        self,
        header: NodeRunner,
        plan: LoopPlan,
        body: Sequence[Runner],
        runners: dict[str, NodeRunner],
        steering: Steering,
        emit: Callable[[Event], None],
    ) -> None:
        self.header = header
        self.node = header.node
        self.step_seconds: list[float] = []
        self._body = tuple(body)
        self._closing = plan.closing
        self._direct = [runner for runner in body if isinstance(runner, NodeRunner)]
        self._contexts: list[NodeContext] = []
        self._group = {plan.header, *plan.nodes()}
        self._runners = runners
        self._steering = steering
        self._emit = emit
        self._cancel: CancelToken = header.cancel
        outputs = header.node.ports.outputs
        self._per_step_slots = [header.base + index for index, port in enumerate(outputs) if port.per_step]
        self._result_slots = [header.base + index for index, port in enumerate(outputs) if not port.per_step]
        self._step_started = 0.0

    def run(self) -> None:
        """Run the loop to its end and fill its result slots. Raises WorkflowError or RunCancelled."""
        header = self.header
        started = perf_counter()
        inputs: dict[str, Any] = {}
        try:
            inputs, _ = self._gather()
            instance = cast(LoopInstance, header.instance or header.prepare())
            self._start_body()
            self._step_started = perf_counter()
            results = instance.run_loop(self, inputs)
            for slot, value in zip(self._result_slots, results, strict=True):
                header.values[slot] = value
        except (WorkflowError, RunCancelled):
            raise
        except KeyboardInterrupt as error:
            raise RunCancelled from error
        except (Exception, SystemExit) as error:
            raise WorkflowError([header.problem(error, inputs)]) from error
        finally:
            header.seconds += perf_counter() - started

    def run_body(self, per_step: Sequence[Any], step: int) -> None:
        """See LoopDriver."""
        if self._cancel.is_set:
            raise RunCancelled
        if self._steering.is_waiting:
            self._apply_steering(step)
        values = self.header.values
        for slot, value in zip(self._per_step_slots, per_step, strict=True):
            values[slot] = value
        for context in self._contexts:
            context.step = step
        for runner in self._body:
            runner.run()

    def feedback(self, name: str) -> Any:
        """See LoopDriver."""
        return self.header.current(name)

    def steer(self, name: str) -> Any:
        """See LoopDriver."""
        return self.header.current(name)

    def step_done(self, step: int, steps: int) -> None:
        """See LoopDriver."""
        now = perf_counter()
        seconds = now - self._step_started
        self._step_started = now
        self.step_seconds.append(seconds)
        self._emit(StepFinished(self.node.id, step, steps, seconds))

    def _gather(self) -> tuple[dict[str, Any], bool]:
        """Gather the header's inputs; what its own body computes is not there yet."""
        for name in self._closing:
            self.header.values[self.header.slots[name]] = None
        return self.header.gather()

    def _start_body(self) -> None:
        """Make the body's instances and let them forget what an earlier run of this loop left."""
        for runner in self._direct:
            (runner.instance or runner.prepare()).reset()
        nodes = (self.header, *self._direct)
        self._contexts = [runner.context for runner in nodes if runner.context is not None]

    def _apply_steering(self, step: int) -> None:
        for (node, name), value in self._steering.take(self._group).items():
            self._runners[node].literals[name] = value
            self._emit(Steered(node, name, step + 1))


Runner: TypeAlias = NodeRunner | LoopRunner
