"""Outputs of nodes by signature, kept under a byte budget, least recently used first out."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.events import Output, Preview
from app.engine.lanes import Pair


@dataclass(frozen=True, slots=True)
class Entry:
    """What a node, or a loop with its body, gave.

    values: its outputs in port order. shown: the outputs and last previews that it showed, each with the place of its
    node among those of the loop, in planned order: another document may call the nodes otherwise.
    """

    values: Sequence[Any]
    shown: tuple[tuple[int, Output | Preview], ...] = ()

    def is_whole(self) -> bool:
        """Return whether every file that the node wrote is still there."""
        files = [event.path for _, event in self.shown if isinstance(event, Output) and event.path]
        return all(Path(file).exists() for file in files)


class OutputCache:
    """Thread-safe. budget_bytes: limit for the sum of all entries; an entry larger than that is not kept."""

    def __init__(self, budget_bytes: int = 1 << 30) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.hits = 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, tuple[Entry, int]] = OrderedDict()

    def get(self, signature: bytes) -> Entry | None:
        """Return the entry of that signature and make it the most recently used, or None."""
        with self._lock:
            found = self._entries.get(signature)
            if found is None:
                return None
            self._entries.move_to_end(signature)
            self.hits += 1
            return found[0]

    def put(self, signature: bytes, entry: Entry) -> None:
        """Keep an entry; its arrays become read-only, because every later run shares them."""
        size = sum(map(_freeze, entry.values)) + sum(_shown_bytes(event) for _, event in entry.shown)
        with self._lock:
            self._drop(signature)
            if size > self.budget_bytes:
                return
            self._entries[signature] = (entry, size)
            self.used_bytes += size
            while self.used_bytes > self.budget_bytes:
                self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def _drop(self, signature: bytes) -> None:
        _, size = self._entries.pop(signature, (None, 0))
        self.used_bytes -= size


def _freeze(value: Any) -> int:
    """Make the arrays in a value read-only; return the value's size in bytes."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
        return value.nbytes + 128
    if isinstance(value, Pair):
        return _freeze(value.positive) + _freeze(value.negative)
    if isinstance(value, list | tuple):
        return 64 + sum(map(_freeze, value))
    return sys.getsizeof(value)


def _shown_bytes(event: Output | Preview) -> int:
    return event.image.nbytes + 128 if isinstance(event, Preview) else 256 + sys.getsizeof(event.value)
