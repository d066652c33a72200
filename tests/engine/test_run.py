"""Running plans: once, cached, steered, restarted, cancelled. Expected values are closed forms of the small graphs."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from app.engine.events import (
    Cached,
    Cancelled,
    Done,
    Event,
    Failed,
    NodeFinished,
    NodeStarted,
    Output,
    Queued,
    Restarted,
    Started,
    Steered,
    StepFinished,
)
from app.graph import socket
from app.graph.errors import WorkflowError
from app.graph.node import Array, Help, Out, node
from tests.engine.kit import calls, engine, recorder, values, workflow


def counting_loop(**denoise: Any) -> Any:
    """x <- x + amount on every step, from 0: after n steps the latent is the sum of the amounts."""
    return workflow(
        start=("TensorFill", {"shape": [1], "value": 0.0}),
        loop=("DenoiseLoop", {"latent": "->start.tensor", "prediction": "->add.value", "steps": 5, **denoise}),
        add=("SteeredAdd", {"value": "->loop.sample", "amount": 1.0}),
        count=("CountCalls", {"value": "->start.tensor", "name": "upstream"}),
        up=("Collect", {"value": "->count.value"}),
        out=("Collect", {"value": "->loop.latent"}),
    )


@pytest.fixture(autouse=True)
def fresh_counts() -> None:
    calls.clear()


def test_a_loop_runs_its_body_once_for_every_step(tmp_path: Path) -> None:
    record = engine(tmp_path).run(counting_loop(steps=7))
    assert values(record)[0].tolist() == [7.0]
    assert len(record.step_seconds_by_loop["loop"]) == 7


def test_start_step_skips_the_steps_before_it(tmp_path: Path) -> None:
    assert values(engine(tmp_path).run(counting_loop(steps=7, start_step=3)))[0].tolist() == [4.0]


def test_events_come_in_order_and_say_what_happened(tmp_path: Path) -> None:
    events, emit = recorder()
    engine(tmp_path).run(counting_loop(steps=2), emit)
    assert isinstance(events[0], Queued)
    assert isinstance(events[1], Started)
    assert isinstance(events[-1], Done)
    steps = [(event.node, event.step, event.steps) for event in events if isinstance(event, StepFinished)]
    assert steps == [("loop", 1, 2), ("loop", 2, 2)]
    started = [event.node for event in events if isinstance(event, NodeStarted)]
    assert started == [event.node for event in events if isinstance(event, NodeFinished)]
    assert "add" not in started, "a body's nodes are reported by their loop's steps"


def test_a_second_run_takes_everything_from_cache_and_shows_the_same_outputs(tmp_path: Path) -> None:
    shared = engine(tmp_path)
    first = shared.run(counting_loop())
    events, emit = recorder()
    second = shared.run(counting_loop(), emit)
    assert calls["upstream"] == 1
    assert [output.value.tolist() for output in second.outputs] == [output.value.tolist() for output in first.outputs]
    assert set(second.cached) == {"start", "loop", "add", "count", "up", "out"}
    assert any(isinstance(event, Cached) for event in events)


def test_only_what_a_change_reaches_is_computed_again(tmp_path: Path) -> None:
    shared = engine(tmp_path)
    shared.run(counting_loop())
    record = shared.run(counting_loop(steps=6))
    assert values(record)[0].tolist() == [6.0]
    assert calls["upstream"] == 1
    assert {"start", "count", "up"} <= set(record.cached)


def test_renaming_nodes_keeps_their_cached_outputs(tmp_path: Path) -> None:
    shared = engine(tmp_path)
    shared.run(workflow(a=("CountCalls", {"value": 1}), out=("Collect", {"value": "->a.value"})))
    shared.run(workflow(b=("CountCalls", {"value": 1}), out=("Collect", {"value": "->b.value"})))
    assert calls["count"] == 1


def test_a_cached_output_is_shown_under_the_name_its_node_has_now(tmp_path: Path) -> None:
    shared = engine(tmp_path)
    shared.run(workflow(a=("CountCalls", {"value": 1}), first=("Collect", {"value": "->a.value"})))
    record = shared.run(workflow(a=("CountCalls", {"value": 1}), second=("Collect", {"value": "->a.value"})))
    assert [(output.node, output.value) for output in record.outputs] == [("second", 1)]


class AtStep:
    """Calls a function when a step has finished; records events."""

    def __init__(self, step: int, act: Any) -> None:
        self.step, self.act, self.events = step, act, []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, StepFinished) and event.step == self.step:
            self.step = -1
            self.act()


def test_a_steerable_override_acts_from_the_next_step_of_the_same_run(tmp_path: Path) -> None:
    """Five steps of 1, then fifteen of 10: 5 + 150. Cancelled or restarted, it would be 200."""
    shared = engine(tmp_path)
    watch = AtStep(5, lambda: run.override({("add", "amount"): 10.0}))
    run = shared.start(counting_loop(steps=20), watch)
    record = run.execute()
    assert values(record)[0].tolist() == [155.0]
    assert [event for event in watch.events if isinstance(event, Steered)] == [Steered("add", "amount", 6)]
    assert not any(isinstance(event, Restarted) for event in watch.events)


def test_a_steered_result_is_not_taken_for_that_of_either_value(tmp_path: Path) -> None:
    shared = engine(tmp_path)
    run = shared.start(counting_loop(steps=4), AtStep(2, lambda: run.override({("add", "amount"): 10.0})))
    assert values(run.execute())[0].tolist() == [22.0]
    assert values(shared.run(counting_loop(steps=4)))[0].tolist() == [4.0]
    settled = counting_loop(steps=4).with_inputs({("add", "amount"): 10.0})
    assert values(shared.run(settled))[0].tolist() == [40.0]


def test_another_override_restarts_from_the_first_node_it_changes(tmp_path: Path) -> None:
    shared = engine(tmp_path)
    watch = AtStep(3, lambda: run.override({("loop", "steps"): 8}))
    run = shared.start(counting_loop(steps=20), watch)
    record = run.execute()
    assert values(record)[0].tolist() == [8.0]
    assert len(values(record)) == 1, "outputs of the abandoned attempt do not count"
    assert calls["upstream"] == 1, "what the change does not reach comes from cache"
    assert [event.node for event in watch.events if isinstance(event, Restarted)] == ["loop"]


def test_a_steerable_override_that_misses_the_last_pass_restarts(tmp_path: Path) -> None:
    shared = engine(tmp_path)
    run = shared.start(counting_loop(steps=4), AtStep(4, lambda: run.override({("add", "amount"): 2.0})))
    assert values(run.execute())[0].tolist() == [8.0]


def test_an_override_that_would_not_run_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    shared = engine(tmp_path)
    raised: list[WorkflowError] = []

    def bad() -> None:
        with pytest.raises(WorkflowError) as caught:
            run.override({("loop", "start_step"): 50})
        raised.append(caught.value)

    run = shared.start(counting_loop(steps=20), AtStep(3, bad))
    assert values(run.execute())[0].tolist() == [20.0]
    assert "start_step" in str(raised[0])


def test_cancelling_ends_between_steps(tmp_path: Path) -> None:
    shared = engine(tmp_path)
    watch = AtStep(3, lambda: run.cancel())
    run = shared.start(counting_loop(steps=1000), watch)
    record = run.execute()
    assert record.status == "cancelled"
    assert isinstance(watch.events[-1], Cancelled)
    assert sum(isinstance(event, StepFinished) for event in watch.events) == 3
    assert values(shared.run(counting_loop(steps=3)))[0].tolist() == [3.0]


def test_cancelling_from_another_thread_ends_a_long_loop(tmp_path: Path) -> None:
    shared = engine(tmp_path)
    run = shared.start(counting_loop(steps=10_000))
    timer = threading.Timer(0.05, run.cancel)
    timer.start()
    assert run.execute().status == "cancelled"


def test_an_unforeseen_error_is_one_sentence_with_node_step_and_inputs(tmp_path: Path) -> None:
    document = workflow(
        loop=("RepeatLoop", {"count": 5, "collect": "x", "collect_x": "->bad.value"}),
        bad=("Fail", {"value": "->loop.index", "at": 2}),
        out=("Collect", {"value": "->loop.collected_x"}),
    )
    events, emit = recorder()
    record = engine(tmp_path).run(document, emit)
    assert record.status == "failed"
    (problem,) = record.problems
    assert problem.node == "bad"
    for part in ("boom", "at step 3", "value 2"):
        assert part in problem.message
    assert "Traceback" not in problem.message
    assert isinstance(events[-1], Failed)


def test_a_tap_records_every_step(tmp_path: Path) -> None:
    document = workflow(
        start=("TensorFill", {"shape": [1], "value": 0.0}),
        loop=("DenoiseLoop", {"latent": "->start.tensor", "prediction": "->add.value", "steps": 4}),
        add=("SteeredAdd", {"value": "->loop.sample", "amount": 1.0}),
        tap=("Collect", {"value": "->add.value"}),
    )
    record = engine(tmp_path).run(document)
    assert [value.tolist() for value in values(record, "tap")] == [[1.0], [2.0], [3.0], [4.0]]
    assert [output.step for output in record.outputs] == [0, 1, 2, 3]


def test_cfg_follows_a_formula_of_the_step_number(tmp_path: Path) -> None:
    """Lanes c = 1 and u = 0 give prediction = cfg; the next sample is the prediction: cfg of the last step, 1 + 3."""
    document = workflow(
        one=("TensorFill", {"shape": [1], "value": 1.0}),
        zero=("TensorFill", {"shape": [1], "value": 0.0}),
        pair=("GuidancePair", {"positive": "->one.tensor", "negative": "->zero.tensor"}),
        loop=(
            "DenoiseLoop",
            {
                "latent": "->zero.tensor",
                "prediction": "->model.tensor",
                "steps": 4,
                "cfg": "->formula.float",
            },
        ),
        formula=("MathExpression", {"expression": "1 + a", "a": "->loop.step"}),
        model=("TensorArithmetic", {"a": "->zeroed.tensor", "b": "->pair.pair", "operation": "add"}),
        zeroed=("TensorArithmetic", {"a": "->loop.sample", "b": 0.0, "operation": "multiply"}),
        out=("Collect", {"value": "->loop.latent"}),
    )
    assert values(engine(tmp_path).run(document))[0].tolist() == [4.0]


def test_a_pair_without_guidance_costs_one_lane(tmp_path: Path) -> None:
    def document(cfg: float) -> Any:
        return workflow(
            one=("TensorFill", {"shape": [1], "value": 1.0}),
            pair=("GuidancePair", {"positive": "->one.tensor", "negative": "->one.tensor"}),
            loop=("DenoiseLoop", {"latent": "->one.tensor", "prediction": "->count.value", "steps": 3, "cfg": cfg}),
            model=("TensorArithmetic", {"a": "->loop.sample", "b": "->pair.pair", "operation": "add"}),
            count=("CountCalls", {"value": "->model.tensor"}),
            out=("Collect", {"value": "->loop.latent"}),
        )

    values(engine(tmp_path).run(document(1.0)))
    assert calls["count"] == 3
    calls.clear()
    values(engine(tmp_path).run(document(2.0)))
    assert calls["count"] == 6


def test_guidance_without_a_pair_is_refused_with_what_to_do(tmp_path: Path) -> None:
    record = engine(tmp_path).run(counting_loop(cfg=3.0))
    (problem,) = record.problems
    assert (problem.node, problem.input, problem.code) == ("loop", "prediction", "guidance_without_pair")
    assert "Guidance Pair" in problem.message


def test_not_a_number_is_reported_with_the_step_it_appeared_in(tmp_path: Path) -> None:
    """x <- log(x - 1) from 3.5: 0.916, then the logarithm of a negative number in step 2."""
    document = workflow(
        start=("TensorFill", {"shape": [2], "value": 3.5}),
        loop=("DenoiseLoop", {"latent": "->start.tensor", "prediction": "->log.tensor", "steps": 6}),
        less=("TensorArithmetic", {"a": "->loop.sample", "b": 1.0, "operation": "subtract"}),
        log=("TensorUnary", {"tensor": "->less.tensor", "operation": "log"}),
        out=("Collect", {"value": "->loop.latent"}),
    )
    with np.errstate(all="ignore"):
        (problem,) = engine(tmp_path).run(document).problems
    assert problem.code == "not_finite"
    assert "step 2 of 6" in problem.message


def test_a_zero_step_loop_gives_the_latent_back_when_allowed(tmp_path: Path) -> None:
    shared = engine(tmp_path)
    with pytest.raises(WorkflowError, match="start_step"):
        shared.run(counting_loop(steps=5, start_step=5))
    record = shared.run(counting_loop(steps=5, start_step=5, allow_zero_steps=True))
    assert values(record)[0].tolist() == [0.0]


def test_running_to_a_target_leaves_the_rest_alone(tmp_path: Path) -> None:
    record = engine(tmp_path).run(counting_loop(), targets=["up"])
    assert calls["upstream"] == 1
    assert "loop" not in record.seconds_by_node


def test_the_record_has_times_of_nodes_and_steps(tmp_path: Path) -> None:
    record = engine(tmp_path).run(counting_loop(steps=3))
    assert set(record.seconds_by_node) == {"start", "loop", "add", "count", "up", "out"}
    assert all(seconds >= 0 for seconds in record.seconds_by_node.values())
    assert sum(record.step_seconds_by_loop["loop"]) <= record.seconds
    assert isinstance(record.outputs[0], Output)


def test_a_node_that_tries_to_exit_the_program_only_fails_the_run(tmp_path: Path) -> None:
    @node(category="test")
    def leave(value: Annotated[Any, Help("passed through")]) -> Annotated[Any, Out("value")]:
        """Call sys.exit."""
        raise SystemExit(3)

    document = workflow(
        loop=("RepeatLoop", {"count": 2, "collect": "x", "collect_x": "->leave.value"}),
        leave=("Leave", {"value": "->loop.index"}),
        out=("Collect", {"value": "->loop.collected_x"}),
    )
    (problem,) = engine(tmp_path, leave).run(document).problems
    assert problem.node == "leave"
    assert "SystemExit" in problem.message


def test_a_listener_may_override_while_it_hears_of_a_restart(tmp_path: Path) -> None:
    shared = engine(tmp_path)

    def listen(event: Event) -> None:
        if isinstance(event, StepFinished) and (event.step, event.steps) == (2, 20):
            run.override({("loop", "steps"): 6})
        if isinstance(event, Restarted):
            run.override({("add", "amount"): 3.0})

    run = shared.start(counting_loop(steps=20), listen)
    assert values(run.execute())[0].tolist() == [18.0]


def test_overrides_from_another_thread_end_in_the_last_value(tmp_path: Path) -> None:
    """Whatever mixture the steps saw, the overrides are all taken, and a settled run gives the last one's result."""
    shared = engine(tmp_path)
    run = shared.start(counting_loop(steps=3000))

    def send() -> None:
        for amount in range(200):
            try:
                run.override({("add", "amount"): float(amount % 100)})
            except WorkflowError:  # the run was faster than this thread
                return

    sender = threading.Thread(target=send)
    sender.start()
    record = run.execute()
    sender.join()
    assert record.status == "done", [str(problem) for problem in record.problems]
    last = run.workflow.nodes["add"].inputs["amount"]
    assert values(shared.run(run.workflow))[0].tolist() == [3000 * last]


def test_a_run_that_has_ended_takes_no_override(tmp_path: Path) -> None:
    run = engine(tmp_path).start(counting_loop())
    run.execute()
    with pytest.raises(WorkflowError, match="has ended"):
        run.override({("add", "amount"): 1.0})


@pytest.mark.parametrize(("result", "count"), [((1, 2, 3), 3), (None, 0)])
def test_a_node_that_gives_another_number_of_outputs_is_named(tmp_path: Path, result: Any, count: int) -> None:
    @node(category="test")
    def miscount(value: Annotated[Any, Help("ignored")]) -> Annotated[int, Out("value")]:
        """Give what it did not declare."""
        return result

    document = workflow(
        a=("Miscount", {"value": 1}),
        b=("CountCalls", {"value": "->a.value"}),
        out=("Collect", {"value": "->b.value"}),
    )
    (problem,) = engine(tmp_path, miscount).run(document).problems
    assert problem.node == "a"
    assert f"gave {count} outputs, declared 1" in problem.message


def test_a_keyboard_interrupt_in_a_node_cancels_the_run(tmp_path: Path) -> None:
    @node(category="test")
    def interrupt(value: Annotated[Any, Help("ignored")]) -> Annotated[Any, Out("value")]:
        """Raise what ctrl-C raises."""
        raise KeyboardInterrupt

    document = workflow(a=("Interrupt", {"value": 1}), out=("Collect", {"value": "->a.value"}))
    assert engine(tmp_path, interrupt).run(document).status == "cancelled"


def test_a_loop_takes_lists_of_numbers_as_tensors(tmp_path: Path) -> None:
    document = workflow(
        loop=("DenoiseLoop", {"latent": [[1.0, 2.0]], "prediction": "->add.value", "steps": 2}),
        add=("SteeredAdd", {"value": "->loop.sample", "amount": 1.0}),
        out=("Collect", {"value": "->loop.latent"}),
    )
    assert values(engine(tmp_path).run(document))[0].tolist() == [[3.0, 4.0]]


@pytest.mark.parametrize("timesteps", [["a", "b", "c"], [1.0, None, 2.0], [True, 1.0, 2.0], [float("nan"), 1.0, 2.0]])
def test_timesteps_that_are_no_numbers_are_refused(tmp_path: Path, timesteps: list[Any]) -> None:
    with pytest.raises(WorkflowError, match="input timesteps"):
        engine(tmp_path).run(counting_loop(steps=3, timesteps=timesteps))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("latent", "bad"),
    [
        ([math.inf, -math.inf, 1.0], 2),
        ([math.nan, 1.0, 1.0], 1),
        ([1e30, -1e30, 1e30], 0),
        ([3.4e38, 3.4e38, 0.0], 0),
        ([0.0, 0.0, 0.0], 0),
    ],
)
def test_only_values_that_are_not_finite_are_refused(tmp_path: Path, latent: list[float], bad: int) -> None:
    """Infinities of both signs must not cancel out, and large values are no fault though their squares overflow."""

    @node(category="test")
    def give(value: Annotated[Array, Help("ignored")]) -> Annotated[Array, Out("value"), socket.TENSOR]:
        """Give the values under test."""
        return np.array(latent, np.float32)

    document = workflow(
        start=("TensorFill", {"shape": [3], "value": 0.0}),
        loop=("DenoiseLoop", {"latent": "->start.tensor", "prediction": "->give.value", "steps": 1}),
        give=("Give", {"value": "->loop.sample"}),
        out=("Collect", {"value": "->loop.latent"}),
    )
    record = engine(tmp_path, give).run(document)
    if bad:
        assert f"{bad} of 3 values NaN or infinite at step 1 of 1" in record.problems[0].message
    else:
        assert values(record)[0].tolist() == np.array(latent, np.float32).tolist()
