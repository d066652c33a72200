"""Cancellation: one token per run, heard between nodes, between steps and inside a running session call."""

from __future__ import annotations

import threading
from collections.abc import Callable


class RunCancelled(Exception):
    """The run was told to stop."""


class CancelToken:
    """Set once, from any thread. `is_set` is cheap enough to be read on every node of every step."""

    def __init__(self) -> None:
        self.is_set = False
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def cancel(self) -> None:
        """Stop the run: call every listener once."""
        with self._lock:
            if self.is_set:
                return
            self.is_set = True
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def on_cancel(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the run is cancelled, at once if it already is."""
        with self._lock:
            if not self.is_set:
                self._listeners.append(listener)
                return
        listener()
