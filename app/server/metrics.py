"""Counters in Prometheus's text format (prometheus.io, exposition format 0.0.4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.server.active_run import ActiveRun, RunObserver
from app.server.run_queue import RunQueue

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metrics(RunObserver):
    """Counts ended runs and the seconds of every node type."""

    def __init__(self) -> None:
        self._runs: dict[str, int] = defaultdict(int)
        self._seconds: dict[str, float] = defaultdict(float)
        self._calls: dict[str, int] = defaultdict(int)

    def run_ended(self, run: ActiveRun, record: Mapping[str, Any]) -> None:
        """See RunObserver."""
        self._runs[record["status"]] += 1
        for node, seconds in record.get("seconds_by_node", {}).items():
            name = run.class_types.get(node, "")
            self._seconds[name] += seconds
            self._calls[name] += 1

    def runs_removed(self, runs: Sequence[str], state: str) -> None:
        """See RunObserver."""
        self._runs[state] += len(runs)

    def text(self, queue: RunQueue) -> str:
        """Return all metrics."""
        running, queued = queue.counts
        stats = queue.stats
        families: list[tuple[str, str, str, Iterable[tuple[Mapping[str, str], float]]]] = [
            ("queue_depth", "gauge", "Runs that wait.", [({}, queued)]),
            ("runs_running", "gauge", "Runs in hand.", [({}, running)]),
            ("queue_paused", "gauge", "1 while no queued run is started.", [({}, int(queue.is_paused))]),
            ("runs_total", "counter", "Ended runs.", _labelled("state", self._runs)),
            ("node_seconds_total", "counter", "Time spent in nodes.", _labelled("node_type", self._seconds)),
            ("node_runs_total", "counter", "Nodes computed in runs.", _labelled("node_type", self._calls)),
            ("worker_restarts_total", "counter", "Workers that ended.", [({}, queue.worker_restarts)]),
        ]
        for name, kind, help_text in _WORKER:
            families.append((name, kind, help_text, [({}, stats.get(_KEYS.get(name, name), 0))]))
        return "".join(_family(*family) for family in families)


_WORKER = (
    ("sessions", "gauge", "ONNX Runtime sessions that are loaded."),
    ("session_bytes", "gauge", "Bytes of the weights of loaded sessions."),
    ("session_loads_total", "counter", "Sessions loaded by the present worker."),
    ("session_hits_total", "counter", "Sessions found loaded by the present worker."),
    ("session_evictions_total", "counter", "Sessions unloaded to make room by the present worker."),
    ("cache_bytes", "gauge", "Bytes of cached node outputs."),
    ("cache_entries", "gauge", "Cached node outputs."),
    ("cache_hits_total", "counter", "Cached node outputs used by the present worker."),
)
_KEYS = {name: name.removesuffix("_total") for name, _, _ in _WORKER}


def _labelled(label: str, values: Mapping[str, float]) -> list[tuple[Mapping[str, str], float]]:
    return [({label: key}, value) for key, value in sorted(values.items())]


def _family(name: str, kind: str, help_text: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> str:
    lines = [f"# HELP ortloom_{name} {help_text}", f"# TYPE ortloom_{name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
        lines.append(f"ortloom_{name}{{{inside}}} {value}" if inside else f"ortloom_{name} {value}")
    return "\n".join(lines) + "\n"
