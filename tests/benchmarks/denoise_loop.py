"""The denoise loop against a bare onnxruntime loop over the same calls in the same process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
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

LATENT = (1, 4, 16, 16)
ROUNDS = 9


def main() -> None:
    """Print seconds a step of both loops, their ratio and the difference in microseconds, beside the limits."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        denoiser(path / "heavy.onnx", 8, 512, LATENT)
        denoiser(path / "empty.onnx", 0, 1, LATENT)
        rows = [
            _compare(path, "heavy.onnx", 20, "ratio at most 1.02"),
            _compare(path, "empty.onnx", 2000, "at most 60 us"),
        ]
    print_table(["denoiser", "steps", "bare ms/step", "ours ms/step", "ratio", "extra us/step", "limit"], rows)


def _compare(folder: Path, model: str, steps: int, limit: str) -> list[object]:
    folders = Folders(models=(folder,), output=folder)
    engine = Engine(builtin_registry(folders), folders, cache=OutputCache(0))
    workflow = _workflow(model, steps)
    engine.run(workflow)
    with engine.sessions.lease(folder / model, "cpu") as lease:
        session = lease.session
        bare, ours, ratios = [], [], []
        for _ in range(ROUNDS):
            bare.append(_seconds(lambda: _bare_loop(session, steps)) / steps)
            ours.append(_loop_seconds(engine, workflow) / steps)
            ratios.append(ours[-1] / bare[-1])
    extra = (min(ours) - min(bare)) * 1e6
    return [
        model,
        steps,
        f"{median(bare) * 1e3:.4f}",
        f"{median(ours) * 1e3:.4f}",
        f"{median(ratios):.3f}",
        f"{extra:.1f}",
        limit,
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


def _bare_loop(session: Any, steps: int) -> None:
    sample = np.zeros(LATENT, np.float32)
    timestep = np.ones(1, np.float32)
    for _ in range(steps):
        session.run(["out_sample"], {"sample": sample, "timestep": timestep})


def _loop_seconds(engine: Engine, workflow: Workflow) -> float:
    """Return the wall time of the loop's steps within one whole run."""
    record = engine.run(workflow)
    assert record.status == "done", record.problems
    return sum(record.step_seconds_by_loop["loop"])


def _seconds(act: Callable[[], None]) -> float:
    started = perf_counter()
    act()
    return perf_counter() - started


if __name__ == "__main__":
    main()
