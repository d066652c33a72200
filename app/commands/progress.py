"""The live progress of a run on a terminal: the node that runs, and a bar with seconds per step for a loop."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

from app.engine.events import Cached, Event, NodeStarted, Restarted, StepFinished
from app.graph.document import Workflow

_CLEAR_LINE = "\r\x1b[K"


class ProgressBar:
    """Shows events on stderr; silent when stderr is no terminal."""

    def __init__(self, workflow: Workflow) -> None:
        self._titles = {node.id: node.title or node.class_type for node in workflow.nodes.values()}
        self._is_shown = sys.stderr.isatty()
        self._bar: Any = None
        self._node = ""

    def __call__(self, event: Event) -> None:
        """Take one event of the run."""
        if not self._is_shown:
            return
        if isinstance(event, StepFinished):
            self._step(event)
        elif isinstance(event, NodeStarted | Restarted):
            self.close()
            self._write(f"{self._titles.get(event.node, event.node)} ...")
        elif isinstance(event, Cached):
            self._write(f"{len(event.nodes)} nodes from cache\n")

    def close(self) -> None:
        """End the bar in progress and clear the line of the node that ran last."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._is_shown:
            self._write("")

    def _step(self, event: StepFinished) -> None:
        if self._bar is None or self._node != event.node:
            self.close()
            self._node = event.node
            title = self._titles.get(event.node, event.node)
            self._bar = tqdm(total=event.steps or None, desc=title, unit="step", file=sys.stderr, ncols=80)
        self._bar.set_postfix_str(f"{event.seconds:.3f} s/step", refresh=False)
        self._bar.update(event.step - self._bar.n)

    def _write(self, text: str) -> None:
        sys.stderr.write(f"{_CLEAR_LINE}{text}")
        sys.stderr.flush()
