"""Guidance lanes: two calls or one batched call must give the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from app.engine.lanes import Pair
from app.graph.errors import InputError
from nodes.components import Component
from tests.runtime.graphs import Array, component, floats, save

DENOISER = """(float[B,N] sample, int64[B] t, float[B,S,N] cond, float[K,N] extra) => (float[B,N] out, float[B,N] sum) {
    step = Cast<to=1>(t)
    steps = Unsqueeze(step, axis)
    mean = ReduceMean<axes=[1], keepdims=0>(cond)
    scaled = Mul(sample, mean)
    shifted = Add(scaled, steps)
    out = Add(shifted, extra)
    sum = Add(sample, extra)
}"""
"""out = sample * mean(cond) + t + extra; each row is its own."""


class Counted:
    """A session that counts its calls and remembers the batch of each."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.batches: list[int] = []

    def run(self, names: Sequence[str], feeds: dict[str, Array], options: Any) -> list[Array]:
        self.batches.append(max(len(value) for value in feeds.values() if value.ndim))
        outputs: list[Array] = self.session.run(names, feeds, options)
        return outputs


def counted(made: Component) -> Counted:
    made._open()
    session = made._session = Counted(made._session)
    return session


def denoiser(folder: Path, lanes: str) -> Component:
    return component(save(folder, "m", DENOISER, {"axis": np.array([1])}), lanes=lanes)


def array(*shape: int, start: int = 1) -> Array:
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def same(ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one.positive, other.positive)
        np.testing.assert_array_equal(one.negative, other.negative)


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("rows", ["one for all", "one for each"])
@pytest.mark.parametrize("timestep", [7, 7.9, np.array(7), "array"], ids=str)
def test_one_batched_call_gives_what_two_calls_give(batch: int, rows: str, timestep: Any, tmp_path: Path) -> None:
    """Small whole numbers: float32 is exact."""
    inputs = {
        "sample": array(batch, 2),
        "t": np.full(batch, 7) if isinstance(timestep, str) else timestep,
        "cond": Pair(array(batch, 2, 2), array(batch, 2, 2, start=50)),
        "extra": array(1 if rows == "one for all" else batch, 2),
    }
    separate = denoiser(tmp_path, "separate").run_pair(inputs)
    batched = denoiser(tmp_path, "batched")
    session = counted(batched)
    same(batched.run_pair(inputs), separate)
    assert session.batches == [2 * batch]
    for lane in ("positive", "negative"):
        cond = getattr(inputs["cond"], lane).mean(1)
        expected = inputs["sample"] * cond + 7 + inputs["extra"]
        np.testing.assert_array_equal(getattr(separate[0], lane), expected)


def test_several_inputs_may_be_pairs(tmp_path: Path) -> None:
    inputs = {
        "sample": Pair(array(2, 2), array(2, 2, start=9)),
        "t": 3,
        "cond": Pair(array(2, 1, 2), array(2, 1, 2, start=50)),
        "extra": array(2, 2),
    }
    batched = denoiser(tmp_path, "batched")
    session = counted(batched)
    same(batched.run_pair(inputs), denoiser(tmp_path, "separate").run_pair(inputs))
    assert session.batches == [4]


def test_lanes_of_different_lengths_run_as_two_calls(tmp_path: Path) -> None:
    """A negative prompt of another number of tokens."""
    inputs = {
        "sample": array(2, 2),
        "t": 3,
        "cond": Pair(array(2, 5, 2), array(2, 3, 2)),
        "extra": array(1, 2),
    }
    batched = denoiser(tmp_path, "batched")
    session = counted(batched)
    same(batched.run_pair(inputs), denoiser(tmp_path, "separate").run_pair(inputs))
    assert session.batches == [2, 2]


def test_a_batch_with_another_name_in_each_input_is_repeated(tmp_path: Path) -> None:
    path = save(tmp_path, "m", "(float[b1,N] x, float[b2,N] c) => (float[b1,N] y) { y = Mul(x, c) }")
    inputs = {"x": array(2, 3), "c": Pair(array(2, 3), array(2, 3, start=20))}
    batched = component(path, lanes="batched")
    session = counted(batched)
    same(batched.run_pair(inputs), component(path).run_pair(inputs))
    assert session.batches == [4]


@pytest.mark.parametrize(
    "graph",
    [
        "(float[1,3] x, float[1,3] c) => (float[1,3] y) { y = Mul(x, c) }",
        "(float[1,3] x, float[B,3] c) => (float[B,3] y) { y = Mul(x, c) }",
        "(float[B,3] x, float[B,3] c) => (float[1,3] y) { y = Mul(x, c) }",
        "(float[B,3] x, float[B,3] c) => (float y) { z = Mul(x, c)  y = ReduceSum<keepdims=0>(z) }",
        "(float[B,3] x, float[B,3] c) => (float[n] y) { z = Mul(x, c)  y = ReduceSum<keepdims=0>(z, axes) }",
    ],
    ids=["fixed batch", "one fixed input", "fixed output", "one number", "no batch in an output"],
)
def test_a_model_that_cannot_take_both_lanes_at_once_runs_twice(graph: str, tmp_path: Path) -> None:
    path = save(tmp_path, "m", graph, {"axes": np.array([0])})
    inputs = {"x": array(1, 3), "c": Pair(array(1, 3), array(1, 3, start=20))}
    batched = component(path, lanes="batched")
    for _ in range(2):
        same(batched.run_pair(inputs), component(path).run_pair(inputs))


def test_a_batched_call_that_fails_names_the_way_out(tmp_path: Path) -> None:
    """The reshape inside has the batch written into it, which the ports do not say."""
    graph = "(float[B,4] x) => (float[B,2] y) { y = Reshape(x, shape) }"
    path = save(tmp_path, "m", graph, {"shape": np.array([2, 2])})
    pair = {"x": Pair(array(1, 4), array(1, 4))}
    same(component(path).run_pair(pair), [Pair(array(2, 2), array(2, 2))])
    with pytest.raises(InputError, match="set lanes to separate"):
        component(path, lanes="batched").run_pair(pair)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("lanes", ["separate", "batched"])
def test_pairs_of_half_width_floats_stay_so(dtype: str, lanes: str, tmp_path: Path) -> None:
    path = save(tmp_path, "m", f"({dtype}[B,2] x) => ({dtype}[B,2] y) {{ y = Identity(x) }}")
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    pair = Pair(array(1, 2).astype(kind), array(1, 2, start=5).astype(kind))
    [result] = component(path, lanes=lanes).run_pair({"x": pair})
    assert (result.positive.dtype, result.negative.dtype) == (kind, kind)
    assert (result.positive.tolist(), result.negative.tolist()) == ([[1, 2]], [[5, 6]])


SUM = "(float[B,1] x, float[B,1] s) => (float[B,1] total) { total = Add(x, s) }"
SUM_STATE = [{"input": "s", "output": "total", "init": "zeros"}]
HISTORY = "(float[B,1] x, float[B,P] past) => (float[B,T] present) { present = Concat<axis=1>(past, x) }"
HISTORY_STATE = [{"input": "past", "output": "present", "init": "empty"}]


@pytest.mark.parametrize(("graph", "state"), [(SUM, SUM_STATE), (HISTORY, HISTORY_STATE)], ids=["sum", "history"])
@pytest.mark.parametrize("batch", [1, 2])
def test_batched_lanes_carry_the_state_that_separate_lanes_carry(
    graph: str, state: list[Any], batch: int, tmp_path: Path
) -> None:
    path = save(tmp_path, "m", graph)
    batched, separate = (component(path, lanes=lanes, state=state) for lanes in ("batched", "separate"))
    session = counted(batched)
    for step in range(4):
        pair = Pair(array(batch, 1, start=step), array(batch, 1, start=10 * step))
        same(batched.run_pair({"x": pair}), separate.run_pair({"x": pair}))
    assert session.batches == [2 * batch] * 4


def test_a_first_state_that_does_not_have_the_batch_is_computed_for_each_lane(tmp_path: Path) -> None:
    """Nothing says that C is the batch, so the first state is [1, 0]; each lane's first call makes it [2, 1]."""
    path = save(tmp_path, "m", HISTORY.replace("[B,P]", "[C,P]"))
    batched, separate = (component(path, lanes=lanes, state=HISTORY_STATE) for lanes in ("batched", "separate"))
    session = counted(batched)
    for step in range(3):
        pair = Pair(array(2, 1, start=step), array(2, 1, start=10 * step))
        same(batched.run_pair({"x": pair}), separate.run_pair({"x": pair}))
    assert session.batches == [2, 2, 4, 4]


def test_batched_state_is_handed_on_without_a_copy(tmp_path: Path) -> None:
    made = component(save(tmp_path, "m", SUM), lanes="batched", state=SUM_STATE)
    made.run_pair({"x": Pair(floats(1), floats(10))})
    [second] = made.run_pair({"x": Pair(floats(2), floats(20))})
    state = made._state
    assert state is not None
    carried = state.of_both(1, lambda: pytest.fail("the state is there"))
    assert carried is not None
    assert np.shares_memory(carried["s"], second.positive)
    assert np.shares_memory(carried["s"], second.negative)


@pytest.mark.parametrize("lanes", ["separate", "batched"])
def test_the_positive_lane_keeps_its_state_when_guidance_is_turned_off_and_on(lanes: str, tmp_path: Path) -> None:
    """At cfg 1 only the positive lane runs: it sums every x, the negative lane those of the guided steps."""
    made = component(save(tmp_path, "m", SUM), lanes=lanes, state=SUM_STATE)
    [total] = made.run_pair({"x": Pair(floats(1), floats(10))})
    assert made.run({"x": floats(2)}, 0)[0].tolist() == [[3]]
    [total] = made.run_pair({"x": Pair(floats(4), floats(40))})
    assert (total.positive.tolist(), total.negative.tolist()) == ([[7]], [[50]])
    made.reset()
    [total] = made.run_pair({"x": Pair(floats(1), floats(10))})
    assert (total.positive.tolist(), total.negative.tolist()) == ([[1]], [[10]])
