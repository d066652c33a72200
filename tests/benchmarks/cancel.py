"""Cancelling in the middle of a session call of many operators, and running the same session again."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from app.engine.cache import OutputCache
from app.engine.engine import Engine
from app.folders import Folders
from app.graph.document import Workflow
from nodes import builtin_registry
from tests.benchmarks.models import denoiser
from tests.benchmarks.table import print_table

OPERATORS = 60
SIZE = 1536
LATENT = (1, 4, 16, 16)


def main() -> None:
    """Print how long the call takes, one operator of it, and how soon a cancelled run ended."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        denoiser(path / "long.onnx", OPERATORS, SIZE, LATENT)
        folders = Folders(models=(path,), output=path)
        engine = Engine(builtin_registry(folders), folders, cache=OutputCache(0))
        before, whole = _run(engine)
        latencies = [_cancel_after(engine, whole * share) for share in (0.2, 0.4, 0.6, 0.8)]
        after, _ = _run(engine)
    operator = whole / OPERATORS
    print_table(
        ["call s", "operator s", "cancel -> end s (each)", "in operators (worst)"],
        [
            [
                f"{whole:.2f}",
                f"{operator:.3f}",
                " ".join(f"{each:.3f}" for each in latencies),
                f"{max(latencies) / operator:.1f}",
            ]
        ],
    )
    print(f"the next run on the same session gives the same bytes: {np.array_equal(before, after)}")


def _workflow() -> Workflow:
    nodes: dict[str, Any] = {
        "sample": ("TensorFill", {"shape": list(LATENT), "value": 1.0}),
        "model": ("ONNXComponent", {"model": "long.onnx", "sample": ["sample", "tensor"], "timestep": 1.0}),
        "list": ("TensorToList", {"tensor": ["model", "out_sample"]}),
        "show": ("ShowValue", {"value": ["list", "items"]}),
    }
    return Workflow.parse(
        {
            "version": 1,
            "nodes": {name: {"class_type": kind, "inputs": inputs} for name, (kind, inputs) in nodes.items()},
        }
    )


def _run(engine: Engine) -> tuple[Any, float]:
    record = engine.run(_workflow())
    assert record.status == "done", record.problems
    started = perf_counter()
    record = engine.run(_workflow())
    assert record.session_loads == 0
    return np.array(record.outputs[0].value), perf_counter() - started


def _cancel_after(engine: Engine, seconds: float) -> float:
    run = engine.start(_workflow())
    cancelled: list[float] = []

    def stop() -> None:
        cancelled.append(perf_counter())
        run.cancel()

    threading.Timer(seconds, stop).start()
    assert run.execute().status == "cancelled"
    return perf_counter() - cancelled[0]


if __name__ == "__main__":
    main()
