"""A live session under a dragged slider: 200 changes of cfg, steps and start_step in 10 seconds."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.benchmarks.table import print_table
from tests.server.kit import Server, serving, template
from tests.server.live_kit import Watched, pull

CHANGES = 200
SECONDS = 10.0
LIMIT_OVER_STEP_S = 0.020


def main() -> None:
    """Print latency beside its limit, and whether what settled equals a fresh run."""
    with TemporaryDirectory() as folder, serving(Path(folder)) as server:
        watched = asyncio.run(pull(server.url, template("text-to-image"), _changes(), SECONDS))
        steps = [event["seconds"] for event in watched.events if event["type"] == "step_finished"]
        step, latency = median(steps), sorted(watched.latencies)
        loads = {state["session_loads"] for state in watched.states if state["revision"] > 1}
        rows = [
            ["override to first step, median", f"{1e3 * median(latency):.1f} ms", f"{1e3 * (step + 0.02):.1f} ms"],
            ["override to first step, 90 %", f"{1e3 * latency[int(0.9 * len(latency))]:.1f} ms", ""],
            ["one step, median", f"{1e3 * step:.1f} ms", ""],
            ["changes that acted", f"{len(latency)} of {CHANGES}", ""],
            ["runs at once, at most", watched.most_runs_at_once(), 1],
            ["session loads after the first revision", sorted(loads), "one value"],
            ["settled equals a fresh run", _equals_fresh_run(server, watched), True],
        ]
        print_table(["live", "measured", "limit"], rows)


def _changes() -> list[dict[str, float]]:
    draw = random.Random(1)
    made: list[dict[str, float]] = []
    for _ in range(CHANGES):
        made.append(
            draw.choice(
                (
                    {"Denoise.cfg": round(draw.uniform(1, 7), 2)},
                    {"Denoise.steps": draw.randint(10, 20)},
                    {"Denoise.start_step": draw.randint(0, 9)},
                )
            )
        )
    return made


def _equals_fresh_run(server: Server, watched: Watched) -> bool:
    shown = watched.states[-1]["shown"]
    document = server.get(f"/api/runs/{shown['run']}")["document"]
    server.post("/free", {"unload_models": True, "free_memory": True})
    fresh = server.run(document)
    kept, again = (
        (server.data / "output" / outputs[0]["path"]).read_bytes() for outputs in (shown["outputs"], fresh["outputs"])
    )
    return kept == again


if __name__ == "__main__":
    main()
