"""State that goes from a component's outputs to its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.graph.errors import InputError
from app.runtime.carried import first_state
from app.runtime.model_file import ModelSignature, TensorPort, read_signature
from app.runtime.state import StatePair, checked_pairs, propose_state_pairs
from tests.runtime.graphs import Array, component, floats, save

GROWING = """(float[B,1] x, float[B,P] past) => (float[B] total, float[B,T] present) {
    present = Concat<axis=1>(past, x)
    total = ReduceSum<keepdims=0>(present, axes)
}"""
"""Keeps all x so far and gives their sum: 1 + 2 + ... + n for x = 1, 2, ..., n."""

SUM = "(float[B,2] x, float[B,2] s) => (float[B,2] s_out) { s_out = Add(x, s) }"

Shape = tuple[int | str | None, ...]


def growing(folder: Path) -> Path:
    return save(folder, "growing", GROWING, {"axes": np.array([1])})


PAST = [{"input": "past", "output": "present", "init": "empty"}]


def test_state_grows_from_step_to_step_and_starts_afresh_on_reset(tmp_path: Path) -> None:
    made = component(growing(tmp_path), state=PAST)
    for _ in range(2):
        totals = [made.run({"x": floats(n)}, 0)[0].tolist() for n in (1, 2, 3, 4)]
        assert totals == [[1], [3], [6], [10]]
        made.reset()


def test_each_lane_has_its_own_state(tmp_path: Path) -> None:
    made = component(growing(tmp_path), state=PAST)
    for n, sums in ((1, (1, 10)), (2, (3, 30)), (3, (6, 60))):
        assert made.run({"x": floats(n)}, 0)[0].tolist() == [sums[0]]
        assert made.run({"x": floats(n * 10)}, 1)[0].tolist() == [sums[1]]


class Watched:
    """A session that remembers what it was fed."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.fed: list[dict[str, Array]] = []

    def run(self, names: Sequence[str], feeds: dict[str, Array], options: Any) -> list[Array]:
        self.fed.append(dict(feeds))
        outputs: list[Array] = self.session.run(names, feeds, options)
        return outputs


def test_state_is_handed_on_without_a_copy(tmp_path: Path) -> None:
    made = component(growing(tmp_path), state=PAST)
    first = made.run({"x": floats(1)}, 0)
    watched = made._session = Watched(made._session)
    second = made.run({"x": floats(2)}, 0)
    made.run({"x": floats(3)}, 0)
    assert [feeds["past"].shape for feeds in watched.fed] == [(1, 1), (1, 2)]
    assert np.shares_memory(watched.fed[0]["past"], first[1])
    assert np.shares_memory(watched.fed[1]["past"], second[1])


def test_the_first_state_has_the_batch_of_the_call(tmp_path: Path) -> None:
    made = component(growing(tmp_path), state=PAST)
    for expected in ([1, 10, 100], [2, 20, 200]):
        assert made.run({"x": np.array([[1], [10], [100]], np.float32)}, 0)[0].tolist() == expected


@pytest.mark.parametrize(
    ("init", "past", "present", "sizes", "expected"),
    [
        ("empty", ("B", 8, "P", 64), ("B", 8, "T", 64), {"B": 3}, (3, 8, 0, 64)),
        ("empty", ("B", 8, "P", 64), ("B", 8, "T", 64), {}, (1, 8, 0, 64)),
        ("empty", (None, 8, None, 64), (None, 8, None, 64), {}, (1, 8, 0, 64)),
        ("empty", (2, "B", "P", 4), (2, "B", "T", 4), {"B": 3}, (2, 3, 0, 4)),
        ("empty", ("B", "P"), ("B", "T"), {"B": 1, "P": 7}, (1, 0)),
        ("empty", ("B", "S"), ("B", "S"), {"B": 1, "S": 7}, (1, 0)),
        ("zeros", ("B", 4, "H", "W"), ("B", 4, "H", "W"), {"B": 2, "H": 5, "W": 6}, (2, 4, 5, 6)),
        ("zeros", ("B", 4), ("B", 4), {}, (1, 4)),
        ("zeros", (2, 1, 128), (2, 1, 128), {}, (2, 1, 128)),
        ("zeros", (), (), {}, ()),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64"])
def test_the_shape_before_the_first_step(
    init: str, past: Shape, present: Shape, sizes: dict[str, int], expected: Shape, dtype: str
) -> None:
    """The rules of pipeline-spec 3.3 (growing caches) and 3.10 (states of fixed size)."""
    pair = StatePair(TensorPort("past", dtype, past), TensorPort("present", dtype, present), 0, init)
    state = first_state(pair, sizes)
    assert (state.shape, state.dtype.name) == (expected, dtype)
    assert not state.astype(np.float64).any()


def test_a_state_of_zeros_needs_to_know_its_size(tmp_path: Path) -> None:
    made = component(growing(tmp_path), state=[{"input": "past", "output": "present", "init": "zeros"}])
    with pytest.raises(InputError, match=r"axis 1 of past \(P\) without a size") as caught:
        made.run({"x": floats(1)}, 0)
    assert caught.value.input == "state"


def test_a_failed_step_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    made = component(growing(tmp_path), state=PAST)
    made.run({"x": floats(1)}, 0)
    with pytest.raises(InputError):
        made.run({"x": np.zeros((2, 1), np.float32)}, 0)
    assert made.run({"x": floats(2)}, 0)[0].tolist() == [3]


def signature(inputs: dict[str, Shape], outputs: dict[str, Shape], dtype: str = "float32") -> ModelSignature:
    ports = [tuple(TensorPort(name, dtype, shape) for name, shape in side.items()) for side in (inputs, outputs)]
    return ModelSignature(ports[0], ports[1], {}, 8, "", {}, {}, 0, ())


@pytest.mark.parametrize(
    ("state", "part"),
    [
        ("past", "accepted a list"),
        (["past"], "accepted a list"),
        ([{"input": "nowhere", "output": "present"}], "found 'nowhere', accepted an input"),
        ([{"input": "past", "output": ["present"]}], r"accepted an output of the model; use one of present, total"),
        ([{"input": "past", "output": "present", "init": "ones"}], "found init 'ones', accepted empty or zeros"),
        ([{"input": "past", "output": "total"}], "accepted two tensors of the same rank"),
        ([{"input": "past", "output": "present"}] * 2, "declare each port once"),
    ],
)
def test_a_wrong_declaration_is_one_sentence(state: Any, part: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=part) as caught:
        component(growing(tmp_path), state=state)
    assert caught.value.input == "state"


def test_a_state_of_another_dtype_is_refused() -> None:
    mixed = ModelSignature(
        (TensorPort("h", "float16", (1, 2)),), (TensorPort("hn", "float32", (1, 2)),), {}, 8, "", {}, {}, 0, ()
    )
    with pytest.raises(InputError, match=r"hn, float32 \[1, 2\], for h, float16 \[1, 2\]"):
        checked_pairs([{"input": "h", "output": "hn"}], mixed)
    assert propose_state_pairs(mixed) == []


KV: Shape = ("B", 2, "P", 4)
GROWN: Shape = ("B", 2, "T", 4)


@pytest.mark.parametrize(
    ("past", "present"),
    [
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.3.decoder.value", "present.3.decoder.value"),
        ("past_key_values.0.key", "present_key_values.0.key"),
        ("past.11.value", "present.11.value"),
        ("past_key_self_0", "present_key_self_0"),
        ("past_0", "present_0"),
        ("decoder.past_key_values.0.key", "decoder.present.0.key"),
        ("Past_Key_0", "present_key_0"),
    ],
)
def test_caches_are_proposed_from_their_names(past: str, present: str) -> None:
    """The conventions of pipeline-spec 3.2, and exporters' variants of them."""
    found = propose_state_pairs(
        signature({"input_ids": ("B", "S"), past: KV, "past.99.key": KV}, {"logits": ("B",), present: GROWN})
    )
    assert found == [{"input": past, "output": present, "init": "empty"}]


@pytest.mark.parametrize(("name", "after"), [("h", "hn"), ("state", "stateN"), ("c", "c_out"), ("s", "next_s")])
def test_recurrent_states_are_proposed_from_their_names(name: str, after: str) -> None:
    """hn, stateN: the voice activity detector Silero; c_out, next_s: common in exported recurrent networks."""
    found = propose_state_pairs(signature({"input": (1, "n"), name: (2, 1, 64)}, {"output": (1, 1), after: (2, 1, 64)}))
    assert found == [{"input": name, "output": after, "init": "zeros"}]


def test_a_recurrent_state_with_the_batch_behind_its_layers_is_of_fixed_size(tmp_path: Path) -> None:
    """The layout of ONNX's LSTM and GRU: [layers, batch, hidden]. h_t = h_(t-1) + x, from zeros."""
    body = "hn = Add(h, x)"
    path = save(tmp_path, "rnn", f"(float[batch,4] x, float[2,batch,4] h) => (float[2,batch,4] hn) {{ {body} }}")
    proposed = propose_state_pairs(read_signature(path))
    assert proposed == [{"input": "h", "output": "hn", "init": "zeros"}]
    made = component(path, state=proposed)
    x = np.ones((3, 4), np.float32)
    for expected in (1, 2, 3):
        np.testing.assert_array_equal(made.run({"x": x}, 0)[0], np.full((2, 3, 4), expected, np.float32))

    with pytest.raises(InputError, match=r"float32 \[2, 0, 4\] for h, .* set init of h to zeros") as caught:
        component(path, state=[{"input": "h", "output": "hn", "init": "empty"}]).run({"x": x}, 0)
    assert caught.value.input == "state"


@pytest.mark.parametrize(
    ("name", "shape", "after"),
    [
        ("cache", (1, 2, None, 4), (1, 2, None, 4)),
        ("cache", (1, 2, "P", 4), (1, 2, "T", 4)),
        ("cache", (1, 2, "P", 4), (1, 2, "P", 4)),
        ("past_0", (1, 2, "n", 4), (1, 2, "n", 4)),
    ],
)
def test_a_state_that_may_grow_is_proposed_as_empty(name: str, shape: Shape, after: Shape) -> None:
    partner = "present_0" if name == "past_0" else f"{name}_out"
    found = propose_state_pairs(signature({"x": (1, "n"), name: shape}, {"y": (1,), partner: after}))
    assert found == [{"input": name, "output": partner, "init": "empty"}]


def test_a_state_of_unknown_rank_is_refused() -> None:
    """Its first value could have any rank, and a wrong one would be broadcast in silence."""
    ports = TensorPort("h", "float32", None), TensorPort("hn", "float32", None)
    unknown = replace(signature({}, {}), inputs=ports[:1], outputs=ports[1:])
    with pytest.raises(InputError, match="accepted an input whose rank the file tells; export the model with shapes"):
        checked_pairs([{"input": "h", "output": "hn"}], unknown)
    assert propose_state_pairs(unknown) == []


def test_proposed_pairs_are_accepted_and_run(tmp_path: Path) -> None:
    path = save(tmp_path, "sum", SUM)
    proposed = propose_state_pairs(read_signature(path))
    made = component(path, state=proposed)
    assert [made.run({"x": floats(1, 2)}, 0)[0].tolist() for _ in range(3)] == [[[1, 2]], [[2, 4]], [[3, 6]]]
