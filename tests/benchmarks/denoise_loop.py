"""The denoise loop against a bare onnxruntime loop over the same calls in the same process."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np

from app.engine.cache import OutputCache
from app.engine.engine import Engine
from app.engine.events import Event, NodeFinished, NodeStarted
from app.folders import Folders
from app.graph.document import Workflow
from nodes import builtin_registry
from tests.benchmarks.models import denoiser
from tests.benchmarks.table import print_table

LATENT = (1, 4, 16, 16)
ROUNDS = 30


class Clock(NamedTuple):
    """Wall and CPU seconds; on a busy machine only the second tells one per cent from noise."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Clock:
        """Read both clocks."""
        return cls(perf_counter(), process_time())

    def since(self, start: Clock) -> Clock:
        """Return what passed since an earlier reading."""
        return Clock(self.wall - start.wall, self.cpu - start.cpu)


def main() -> None:
    """Print the time of a step of both loops, their ratio and the difference in microseconds, beside the limits."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        denoiser(path / "heavy.onnx", 8, 512, LATENT)
        denoiser(path / "empty.onnx", 0, 1, LATENT)
        heavy = _compare(path, "heavy.onnx", 20, "ratio at most 1.02")
        rows = [*heavy, *_compare(path, "empty.onnx", 2000, "at most 60 us")]
    head = [
        "denoiser",
        "steps",
        "time",
        "bare ms/step",
        "ours ms/step",
        "ratio",
        "10 to 90 %",
        "extra us/step",
        "limit",
    ]
    print_table(head, rows)
    print(f"medians of {ROUNDS} rounds, the two loops in turn; ours counts from the loop node's start to its end")


def _compare(folder: Path, model: str, steps: int, limit: str) -> list[list[object]]:
    folders = Folders(models=(folder,), output=folder)
    engine = Engine(builtin_registry(folders), folders, cache=OutputCache(0))
    workflow = _workflow(model, steps)
    engine.run(workflow)
    bare: list[Clock] = []
    ours: list[Clock] = []
    with engine.sessions.lease(folder / model, "cpu") as lease:
        measures = [
            lambda: bare.append(_bare_time(lease.session, steps)),
            lambda: ours.append(_loop_time(engine, workflow)),
        ]
        for round_number in range(ROUNDS):
            for measure in measures if round_number % 2 else reversed(measures):
                measure()
    return [
        [
            model,
            steps,
            clock,
            *_figures([each[index] / steps for each in bare], [each[index] / steps for each in ours]),
            limit,
        ]
        for index, clock in enumerate(Clock._fields)
    ]


def _figures(bare: list[float], ours: list[float]) -> list[object]:
    """Return the cells of a row from seconds a step in each round."""
    ratios = sorted(mine / theirs for mine, theirs in zip(ours, bare, strict=True))
    tenth = len(ratios) // 10
    return [
        f"{median(bare) * 1e3:.4f}",
        f"{median(ours) * 1e3:.4f}",
        f"{median(ratios):.3f}",
        f"{ratios[tenth]:.3f}..{ratios[-1 - tenth]:.3f}",
        f"{(median(ours) - median(bare)) * 1e6:.1f}",
    ]


def _workflow(model: str, steps: int) -> Workflow:
    nodes: dict[str, Any] = {
        "latent": ("EmptyLatent", {"width": LATENT[3] * 8, "height": LATENT[2] * 8}),
        "scheduler": ("EulerScheduler", {"num_train_timesteps": 4000}),
        "loop": (
            "DenoiseLoop",
            {
                "latent": ["latent", "latent"],
                "scheduler": ["scheduler", "sampler"],
                "steps": steps,
                "prediction": ["unet", "out_sample"],
            },
        ),
        "unet": (
            "ONNXComponent",
            {"model": model, "sample": ["loop", "sample"], "timestep": ["loop", "timestep"]},
        ),
        "show": ("ShowValue", {"value": ["loop", "latent"]}),
    }
    return Workflow.parse(
        {
            "version": 1,
            "nodes": {name: {"class_type": kind, "inputs": inputs} for name, (kind, inputs) in nodes.items()},
        }
    )


def _bare_time(session: Any, steps: int) -> Clock:
    sample = np.zeros(LATENT, np.float32)
    timestep = np.ones(1, np.float32)
    start = Clock.now()
    for _ in range(steps):
        session.run(["out_sample"], {"sample": sample, "timestep": timestep})
    return Clock.now().since(start)


def _loop_time(engine: Engine, workflow: Workflow) -> Clock:
    """Return the time of the loop node within one whole run."""
    readings: list[Clock] = []

    def watch(event: Event) -> None:
        if isinstance(event, NodeStarted | NodeFinished) and event.node == "loop":
            readings.append(Clock.now())

    record = engine.run(workflow, watch)
    assert record.status == "done", record.problems
    start, end = readings
    return end.since(start)


if __name__ == "__main__":
    main()
