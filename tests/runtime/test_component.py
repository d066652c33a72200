"""The ONNX Component: ports from the file, values in and out, errors. Expected values are closed forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from app.folders import Folders
from app.graph.errors import InputError
from app.graph.node import InputPort, NodeType
from app.graph.socket import SocketType
from app.runtime.sessions import SessionPool
from nodes.components import SETTINGS, onnx_component
from tests.runtime.graphs import DOUBLE, add_constant, component, floats, of_type, save

ADD = "(float[B,N] x, float[B,N] y) => (float[B,N] z) { z = Add(x, y) }"


def node_type(folder: Path) -> NodeType:
    return onnx_component(Folders(models=(folder,)))


def model_inputs(folder: Path, path: Path, **literals: Any) -> dict[str, InputPort]:
    ports = node_type(folder).ports_for({"model": path.name, **literals})
    return {port.name: port for port in ports.inputs if port not in SETTINGS}


def test_ports_are_those_of_the_file(tmp_path: Path) -> None:
    graph = "(float16[B,4,?] sample, int64 t) => (float16[B,4,?] out, float[2] stats) { out = Relu(sample) }"
    path = save(tmp_path, "m", graph)
    ports = node_type(tmp_path).ports_for({"model": path.name})
    assert {name: port.type for name, port in model_inputs(tmp_path, path).items()} == {
        "sample": SocketType("TENSOR", frozenset({"float16"}), ("B", 4, None)),
        "t": SocketType("TENSOR", frozenset({"int64"}), ()),
    }
    assert [(port.name, port.type) for port in ports.outputs] == [
        ("out", SocketType("TENSOR", frozenset({"float16"}), ("B", 4, None))),
        ("stats", SocketType("TENSOR", frozenset({"float32"}), (2,))),
    ]
    assert all(port.help for port in ports.inputs)
    assert all(port.help for port in ports.outputs)
    assert all(port.literal_only for port in SETTINGS)


def test_without_a_model_there_are_only_the_settings(tmp_path: Path) -> None:
    ports = node_type(tmp_path).ports_for({})
    assert [port.name for port in ports.inputs] == ["model", "device", "lanes", "state"]
    assert ports.outputs == ()


def test_carried_inputs_are_no_ports_but_their_outputs_are(tmp_path: Path) -> None:
    graph = "(float[2] x, float[2] h) => (float[2] y, float[2] hn) { y = Add(x, h)  hn = Identity(y) }"
    path = save(tmp_path, "m", graph)
    state = [{"input": "h", "output": "hn", "init": "zeros"}]
    assert list(model_inputs(tmp_path, path, state=state)) == ["x"]
    ports = node_type(tmp_path).ports_for({"model": path.name, "state": state})
    assert [port.name for port in ports.outputs] == ["y", "hn"]


def test_an_input_with_a_value_in_the_file_need_not_be_wired(tmp_path: Path) -> None:
    graph = "(float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }"
    path = save(tmp_path, "m", graph, {"w": np.array([10, 20], np.float32)})
    ports = model_inputs(tmp_path, path)
    assert (ports["x"].required, ports["w"].required, ports["w"].group) == (True, False, "defaults")
    made = component(path)
    assert made.run({"x": [1, 2]}, 0)[0].tolist() == [11, 22]
    assert made.run({"x": [1, 2], "w": [5, 5]}, 0)[0].tolist() == [6, 7]


def test_numbered_ports_fold_into_groups(tmp_path: Path) -> None:
    names = ["input_ids", "past_key_values.0.key", "past_key_values.0.value", "past_key_values.1.key", "latent_1"]
    ports = [of_type(name, TensorProto.FLOAT, ["n"]) for name in names]
    outputs = [of_type(name, TensorProto.FLOAT, ["n"]) for name in ("logits", "present.0.key", "present.1.key")]
    nodes = [helper.make_node("Identity", ["input_ids"], [port.name]) for port in outputs]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ports, outputs)), tmp_path / "m.onnx")
    found = model_inputs(tmp_path, tmp_path / "m.onnx")
    assert [port.group for port in found.values()] == ["", *["past_key_values"] * 3, ""]
    groups = [port.group for port in node_type(tmp_path).ports_for({"model": "m.onnx"}).outputs]
    assert groups == ["", "present", "present"]


def test_a_model_input_called_like_a_setting_gets_a_prefix(tmp_path: Path) -> None:
    path = save(tmp_path, "m", "(float[2] state, float[2] x) => (float[2] y) { y = Sub(state, x) }")
    assert list(model_inputs(tmp_path, path)) == ["input.state", "x"]
    made = component(path)
    assert made.run({"state": [], "input.state": [5, 6], "x": [1, 1]}, 0)[0].tolist() == [4, 5]
    with pytest.raises(InputError) as caught:
        made.run({"state": [], "x": [1, 1]}, 0)
    assert caught.value.input == "input.state"
    with pytest.raises(InputError) as caught:
        made.run({"input.state": np.zeros(2, np.int64), "x": [1, 1]}, 0)
    assert caught.value.input == "input.state"


def test_a_model_input_that_already_has_the_prefix_is_told_apart(tmp_path: Path) -> None:
    path = save(tmp_path, "m", "(float[n] model, float[n] other) => (float[n] y) { y = Sub(model, other) }")
    model = onnx.load(path)
    model.graph.input[1].name = model.graph.node[0].input[1] = "input.model"  # the text format has no dots
    onnx.save(model, path)
    names = [port.name for port in onnx_component(Folders(models=(tmp_path,))).ports_for({"model": path.name}).inputs]
    assert names[-2:] == ["input.model", "input.input.model"]
    fed = {"input.model": np.array([5], np.float32), "input.input.model": np.array([3], np.float32)}
    assert component(path).run(fed, 0)[0].tolist() == [2]


def test_the_fingerprint_changes_with_the_file_and_with_its_weights(tmp_path: Path) -> None:
    path = add_constant(tmp_path, "m", np.array([1, 2]), external="w.bin")
    fingerprint = node_type(tmp_path).fingerprint
    assert fingerprint is not None
    seen = [fingerprint({"model": path.name})]
    (tmp_path / "new.bin").write_bytes(bytes(9))
    (tmp_path / "new.bin").replace(tmp_path / "w.bin")
    seen.append(fingerprint({"model": path.name}))
    add_constant(tmp_path, "m", np.array([1, 2, 3]), external="w.bin")
    seen.append(fingerprint({"model": path.name}))
    assert len(set(seen)) == 3
    assert fingerprint({"model": path.name}) == seen[2]


def test_the_session_is_loaded_by_the_first_run_and_given_back_by_close(tmp_path: Path) -> None:
    pool = SessionPool()
    made = component(save(tmp_path, "m", DOUBLE), pool=pool)
    assert pool.loads == 0
    made.run({"x": floats(1)}, 0)
    made.run({"x": floats(1)}, 0)
    assert (pool.loads, pool.hits, pool.report()[0]["users"]) == (1, 0, 1)
    made.close()
    made.close()
    assert pool.report()[0]["users"] == 0


def test_two_components_of_one_file_share_a_session(tmp_path: Path) -> None:
    pool = SessionPool()
    path = save(tmp_path, "m", DOUBLE)
    for value in (1, 2):
        assert component(path, pool=pool).run({"x": floats(value)}, 0)[0].tolist() == [[2 * value]]
    assert (pool.loads, pool.hits) == (1, 1)


def test_settings_and_unwired_inputs_are_not_fed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": "m.onnx", "device": "cpu", "lanes": "separate", "state": [], "optional": None}
    assert component(save(tmp_path, "m", DOUBLE)).run({**settings, "x": floats(3)}, 0)[0].tolist() == [[6]]


def test_a_number_takes_the_batch_of_the_other_inputs_whatever_their_order(tmp_path: Path) -> None:
    """A timestep that is wired as a number into a port [B] of a model whose sample is [B, N]."""
    graph = "(int64[B] t, float[B,N] x) => (int64[B] t_out, float[B,N] y) { t_out = Identity(t)  y = Identity(x) }"
    made = component(save(tmp_path, "m", graph))
    for batch in (3, 1, 2):
        assert made.run({"t": 981.9, "x": np.zeros((batch, 2), np.float32)}, 0)[0].tolist() == [981] * batch
    assert made.run({"t": 4, "x": [[1.0], [2.0]]}, 0)[0].tolist() == [4, 4]


@pytest.mark.parametrize("fed", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("taken", ["FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE"])
def test_floats_of_any_width_go_in_and_the_models_come_out(fed: str, taken: str, tmp_path: Path) -> None:
    """Identity, on values that all four hold."""
    code = TensorProto.DataType.Value(taken)
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [of_type("x", code, ["n", 2])], [of_type("y", code, ["n", 2])])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    values = [[0.0, -1.5], [96.0, 0.25]]
    made = component(path)
    [result] = made.run({"x": np.array(values).astype(getattr(ml_dtypes, fed, fed))}, 0)
    assert result.dtype == helper.tensor_dtype_to_np_dtype(code)
    assert result.astype(np.float64).tolist() == values
    [empty] = made.run({"x": np.zeros((0, 2), np.float32)}, 0)
    assert (empty.shape, empty.dtype) == ((0, 2), result.dtype)


def test_a_model_of_mixed_types_gives_each_output_in_its_own(tmp_path: Path) -> None:
    """bfloat16 keeps 8 bits: 257 rounds to 256."""
    graph = """(bfloat16[n] x, int64[n] i, bool[n] b) => (bfloat16[n] y, float[n] f, int64[n] j, bool[n] c) {
        y = Identity(x)
        f = Cast<to=1>(x)
        j = Add(i, i)
        c = Not(b)
    }"""
    made = component(save(tmp_path, "m", graph))
    y, f, j, c = made.run({"x": np.array([1.5, 257], np.float32), "i": [3, 4], "b": [True, False]}, 0)
    assert [array.dtype.name for array in (y, f, j, c)] == ["bfloat16", "float32", "int64", "bool"]
    assert (y.tolist(), f.tolist()) == ([1.5, 256], [1.5, 256])
    assert (j.tolist(), c.tolist()) == ([6, 8], [False, True])


def test_bfloat16_outputs_outlive_the_next_calls(tmp_path: Path) -> None:
    """They lend ONNX Runtime's memory: it must not be used again while they are alive."""
    path = save(tmp_path, "m", "(bfloat16[n] x) => (bfloat16[n] y) { y = Identity(x) }")
    made = component(path)
    outputs = [made.run({"x": np.full(50_000, value, np.float32)}, 0)[0] for value in range(20)]
    made.close()
    assert [set(output.tolist()) for output in outputs] == [{float(value)} for value in range(20)]


@pytest.mark.parametrize("values", [["a", "bc"], np.array(["a", "bc"]), np.array(["a", "bc"], object)])
def test_texts_go_in_and_come_out(values: Any, tmp_path: Path) -> None:
    path = save(tmp_path, "m", "(string[n] x) => (string[n] y) { y = Identity(x) }")
    assert component(path).run({"x": values}, 0)[0].tolist() == ["a", "bc"]


def test_sequences_pass_as_they_are(tmp_path: Path) -> None:
    path = save(tmp_path, "m", "(seq(float[2]) x) => (float[n] y) { y = ConcatFromSequence<axis=0>(x) }")
    parts = [np.array([1, 2], np.float32), np.array([3, 4], np.float32)]
    assert component(path).run({"x": parts}, 0)[0].tolist() == [1, 2, 3, 4]


def test_inputs_are_not_changed(tmp_path: Path) -> None:
    value = floats(1, 2)
    value.flags.writeable = False
    assert component(save(tmp_path, "m", DOUBLE)).run({"x": value}, 0)[0].tolist() == [[2, 4]]


@pytest.mark.parametrize(
    ("inputs", "input", "part"),
    [
        ({"x": floats(1)}, "y", r"found nothing, accepted float32 \[B, N\]; wire it or set a value"),
        ({"x": floats(1), "y": np.zeros((1, 1), np.int64)}, "y", r"found int64 \[1, 1\], .* put a Cast node"),
        ({"x": floats(1), "y": np.zeros(1, np.float32)}, "y", "1 dimensions do not fit 2"),
        ({"x": floats(1, 2), "y": floats(1, 2, 3)}, "y", r"float32 \[1, 3\], accepted .* N = 2 as in x"),
        ({"x": floats(1, 2), "y": None}, "y", "found nothing"),
    ],
)
def test_inputs_that_do_not_fit_are_one_sentence(
    inputs: dict[str, Any], input: str, part: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = component(save(tmp_path, "m", ADD))
    with pytest.raises(InputError, match=part) as caught:
        made.run(inputs, 0)
    assert caught.value.input == input
    assert "\n" not in caught.value.message
    assert tuple(capfd.readouterr()) == ("", ""), "ONNX Runtime's own log is silent"
    assert made.run({"x": floats(1), "y": floats(2)}, 0)[0].tolist() == [[3]]


def test_a_fixed_dimension_that_changes_between_steps_is_found(tmp_path: Path) -> None:
    """The check is in full on the first step only; another shape is another first step."""
    made = component(save(tmp_path, "m", "(float[B,2] x) => (float[B,2] y) { y = Neg(x) }"))
    made.run({"x": floats(1, 2)}, 0)
    with pytest.raises(InputError, match="axis 1 must be 2"):
        made.run({"x": floats(1, 2, 3)}, 0)


def test_what_onnxruntime_refuses_is_said_without_its_source_paths(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    graph = "(float[n] x, int64[k] i) => (float[k] y) { y = Gather(x, i) }"
    made = component(save(tmp_path, "m", graph))
    with pytest.raises(InputError) as caught:
        made.run({"x": np.zeros(3, np.float32), "i": [7]}, 0)
    assert caught.value.message == (
        "found x float32 [3], i int64 [1], on which m.onnx fails (Gather node: indices element out of data bounds, "
        "idx=7 must be within the inclusive range [-3,2]), accepted inputs that it can compute; check that the shapes "
        "belong to this model"
    )
    assert tuple(capfd.readouterr()) == ("", "")


def test_shapes_that_do_not_go_together_are_said_in_few_words(tmp_path: Path) -> None:
    made = component(save(tmp_path, "m", "(float[a] x, float[b] y) => (float[c] z) { z = Add(x, y) }"))
    with pytest.raises(InputError, match=r"Add node: axis == 1 .* 2 by 3") as caught:
        made.run({"x": [1, 2], "y": [1, 2, 3]}, 0)
    assert not any(mark in caught.value.message for mark in ("::", ".h:", "/onnxruntime_src", "ptrdiff_t"))


def test_out_of_memory_unloads_what_is_idle_and_says_so(tmp_path: Path) -> None:
    """4 TiB are asked for."""
    pool = SessionPool()
    component(save(tmp_path, "idle", DOUBLE), pool=pool).run({"x": floats(1)}, 0)
    idle = component(save(tmp_path, "other", DOUBLE), pool=pool)
    idle.run({"x": floats(1)}, 0)
    idle.close()
    made = component(save(tmp_path, "m", "(int64[2] s) => (float[a,b] y) { y = ConstantOfShape(s) }"), pool=pool)
    with pytest.raises(MemoryError, match=r"m\.onnx asked for more than there is"):
        made.run({"s": [1 << 20, 1 << 20]}, 0)
    assert sorted(Path(entry["path"]).stem for entry in pool.report()) == ["idle", "m"]
    assert made.run({"s": [1, 2]}, 0)[0].tolist() == [[0, 0]]
