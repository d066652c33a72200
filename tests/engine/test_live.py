"""Turning knobs on the bundled model in one process: no session is loaded again, the text encoder stays cached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.engine.engine import Engine
from app.engine.events import Event, Restarted, Steered, StepFinished
from app.folders import Folders
from app.graph.comfy import load
from app.graph.document import Workflow
from nodes import builtin_registry

WORKFLOWS = Path(__file__).parent.parent.parent / "workflows"


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    folders = Folders(output=tmp_path)
    return Engine(builtin_registry(folders), folders)


@pytest.fixture
def workflow() -> Workflow:
    return load((WORKFLOWS / "image-to-image.json").read_text())


def turned(workflow: Workflow, **values: Any) -> Workflow:
    loop = workflow.find_node("Denoise")
    return workflow.with_inputs({(loop, name): value for name, value in values.items()})


def picture(record: Any) -> np.ndarray:
    assert record.status == "done", [str(problem) for problem in record.problems]
    return np.asarray(Image.open(record.outputs[-1].path), np.int32)


def test_runs_that_differ_in_steps_cfg_start_step_and_seed_load_each_session_once(
    engine: Engine, workflow: Workflow, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: list[dict[str, Any]] = [{}, {"steps": 12, "start_step": 5}, {"cfg": 1.5}, {"start_step": 12}, {"seed": 99}]
    records = [engine.run(turned(workflow, **change)) for change in changes]
    pictures = [picture(record) for record in records]
    encoder = workflow.find_node("Text encoder")
    with capsys.disabled():
        for change, record in zip(changes, records, strict=True):
            print(f"\n{change}: {record.session_loads} sessions loaded, {len(record.cached)} nodes cached", end="")
        print()
    assert [record.session_loads for record in records] == [4, 0, 0, 0, 0]
    assert [encoder in record.cached for record in records] == [False, True, True, True, True]
    for index, first in enumerate(pictures):
        assert not any(np.array_equal(first, other) for other in pictures[index + 1 :])


def test_cfg_sent_at_step_5_acts_from_step_6_of_the_same_run(engine: Engine, workflow: Workflow) -> None:
    """A run with cfg made from the step number, 3 up to step 5 and 1.5 from step 6 on, gives the same picture."""
    loop = workflow.find_node("Denoise")
    plain = turned(workflow, start_step=0)
    events: list[Event] = []

    def watch(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepFinished) and event.step == 5:
            run.override({(loop, "cfg"): 1.5})

    run = engine.start(plain, watch)
    steered = picture(run.execute())
    assert [event for event in events if isinstance(event, Steered)] == [Steered(loop, "cfg", 6)]
    assert not any(isinstance(event, Restarted) for event in events)
    assert sum(isinstance(event, StepFinished) for event in events) == 20

    document = plain.to_json()
    document["nodes"]["formula"] = {
        "class_type": "MathExpression",
        "inputs": {"expression": "3 if a < 5 else 1.5", "a": [loop, "step"]},
    }
    document["nodes"][loop]["inputs"]["cfg"] = ["formula", "float"]
    assert np.array_equal(steered, picture(engine.run(Workflow.parse(document))))
    assert not np.array_equal(steered, picture(engine.run(plain)))
    assert not np.array_equal(steered, picture(engine.run(turned(plain, cfg=1.5))))


def test_a_steps_override_restarts_from_the_loop_with_everything_before_it_cached(
    engine: Engine, workflow: Workflow
) -> None:
    loop = workflow.find_node("Denoise")
    events: list[Event] = []

    def watch(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepFinished) and (event.step, event.steps) == (12, 20):
            run.override({(loop, "steps"): 10})

    run = engine.start(workflow, watch)
    record = run.execute()
    assert Restarted(loop) in events
    assert workflow.find_node("Text encoder") in record.cached
    assert record.session_loads == 4
    assert np.array_equal(picture(record), picture(engine.run(turned(workflow, steps=10))))
