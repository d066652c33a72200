"""Signatures read without onnx; the peer is the onnx package, which reads the same files in full."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from app.folders import BUNDLED_MODELS
from app.graph.errors import InputError
from app.runtime.model_file import DTYPES, TensorPort, read_signature, stamp
from tests.runtime.graphs import DOUBLE, Array, add_constant, of_type, save, with_location

WEIGHTS = np.arange(6, dtype=np.float32)


def refused(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        read_signature(path)
    assert caught.value.input == "model"
    assert "\n" not in caught.value.message
    return caught.value


def shape_of(port: onnx.ValueInfoProto) -> tuple[int | str | None, ...]:
    dims = port.type.tensor_type.shape.dim
    return tuple({"dim_value": dim.dim_value, "dim_param": dim.dim_param}.get(dim.WhichOneof("value")) for dim in dims)


def parts_of(graph: onnx.GraphProto) -> tuple[list[onnx.NodeProto], list[TensorProto]]:
    """Return the nodes and the weights of a graph and of all graphs inside it."""
    nodes, tensors = list(graph.node), list(graph.initializer)
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        tensors += [attribute.t, *attribute.tensors] if attribute.HasField("t") else attribute.tensors
        for inner in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
            found = parts_of(inner)
            nodes, tensors = nodes + found[0], tensors + found[1]
    return nodes, tensors


def agrees_with_onnx(path: Path) -> None:
    peer = onnx.load(path)
    signature = read_signature(path)
    for ours, theirs in ((signature.inputs, peer.graph.input), (signature.outputs, peer.graph.output)):
        names = [helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type).name for port in theirs]
        expected = [(port.name, dtype, shape_of(port)) for port, dtype in zip(theirs, names, strict=True)]
        assert [(port.name, port.dtype, port.shape) for port in ours] == expected
    assert signature.opsets == {entry.domain: entry.version for entry in peer.opset_import}
    assert (signature.ir_version, signature.producer) == (peer.ir_version, peer.producer_name)
    assert signature.metadata == {entry.key: entry.value for entry in peer.metadata_props}
    nodes, tensors = parts_of(peer.graph)
    ops = [node.op_type for node in nodes]
    assert signature.ops == {op: ops.count(op) for op in set(ops)}
    assert signature.weight_bytes == sum(numpy_helper.to_array(tensor).nbytes for tensor in tensors)


@pytest.mark.parametrize("path", sorted(BUNDLED_MODELS.rglob("*.onnx")), ids=lambda path: path.stem)
def test_the_signature_of_a_bundled_model_is_what_onnx_reads(path: Path) -> None:
    agrees_with_onnx(path)


def test_the_signature_of_a_model_with_everything_is_what_onnx_reads(tmp_path: Path) -> None:
    graph = "(float16[B,3,?] x, int64[1] t) => (float16[B,3,M] y) { z = Add(x, x)  y = Relu(z) }"
    weights: dict[str, Array] = {"a": np.ones((3, 4), np.float16), "b": np.ones(5, np.int64), "c": np.array(True)}
    path = save(tmp_path, "all", graph, weights)
    model = onnx.load(path)
    model.producer_name = "a tool"
    helper.set_model_props(model, {"license": "none", "größe": "klein"})
    model.opset_import.append(helper.make_opsetid("com.example", 3))
    onnx.save(model, path)
    agrees_with_onnx(path)


def test_the_signature_of_a_model_with_external_data_is_what_onnx_reads(tmp_path: Path) -> None:
    path = add_constant(tmp_path, "ext", WEIGHTS, external="weights.bin")
    agrees_with_onnx(path)
    assert read_signature(path).external_files == (tmp_path / "weights.bin",)


def branching(folder: Path, depth: int, external: bool = False) -> Path:
    """Write a model of nested conditions, each branch with a weight of its own: bool [] -> float32 [400]."""

    def graph(name: str, level: int) -> onnx.GraphProto:
        weight = numpy_helper.from_array(np.full(400, level, np.float32), f"w{level}{name}")
        node = helper.make_node("Neg", [weight.name], [f"y{level}{name}"])
        if level < depth:
            node = condition(f"y{level}{name}", level + 1)
        return helper.make_graph([node], name, [], [of_type(f"y{level}{name}", 1, [400])], [weight])

    def condition(output: str, level: int) -> onnx.NodeProto:
        branches = {f"{name}_branch": graph(name, level) for name in ("then", "else")}
        return helper.make_node("If", ["c"], [output], **branches)

    whole = helper.make_graph([condition("y", 1)], "g", [of_type("c", TensorProto.BOOL, [])], [of_type("y", 1, [400])])
    path = folder / f"if{depth}.onnx"
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=external, location="if.bin" if external else None, size_threshold=0)
    return path


@pytest.mark.parametrize("external", [False, True])
def test_graphs_inside_graphs_are_counted_as_onnx_finds_them(external: bool, tmp_path: Path) -> None:
    path = branching(tmp_path, 3, external)
    agrees_with_onnx(path)
    assert read_signature(path).ops == {"If": 1 + 2 + 4, "Neg": 8}
    if external:
        assert read_signature(path).external_files == (tmp_path / "if.bin",)
        (tmp_path / "if.bin").unlink()
        assert refused(path).code == "external_data_missing"


def test_graphs_nested_deeper_than_any_reader_takes_are_refused(tmp_path: Path) -> None:
    """Built from bytes, inside out: protobuf itself refuses to write or read as many levels."""

    def part(field: int, content: bytes) -> bytes:
        return varint(field << 3 | 2) + varint(len(content)) + content

    graph = b""
    for _ in range(2000):
        attribute = part(6, graph) + b"\xa0\x01\x05"
        graph = part(1, part(4, b"If") + part(5, attribute))
    path = tmp_path / "deep.onnx"
    path.write_bytes(part(7, graph))
    assert "graphs inside one another" in refused(path).message


@pytest.mark.parametrize("code", DTYPES)
def test_every_dtype_has_the_name_that_numpy_and_ml_dtypes_give_it(code: int, tmp_path: Path) -> None:
    """onnx maps element types to numpy dtypes; it has no numpy dtype for texts but object."""
    port = of_type("x", code, [2])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [port], [of_type("y", code, [2])])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    expected = "string" if code == TensorProto.STRING else helper.tensor_dtype_to_np_dtype(code).name
    assert read_signature(tmp_path / "m.onnx").inputs == (TensorPort("x", expected, (2,)),)


def test_unknown_shapes_and_what_is_no_tensor_are_told_apart(tmp_path: Path) -> None:
    ports = [
        helper.make_tensor_value_info("scalar", TensorProto.FLOAT, []),
        helper.make_tensor_value_info("no_rank", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("negative", TensorProto.FLOAT, [-1, 0]),
        helper.make_tensor_sequence_value_info("many", TensorProto.FLOAT, None),
        helper.make_value_info("maybe", helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [2]))),
        helper.make_value_info("map", helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, []))),
    ]
    graph = helper.make_graph([helper.make_node("Identity", ["scalar"], ["y"])], "g", ports, [of_type("y", 1, [])])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    inputs = read_signature(tmp_path / "m.onnx").inputs
    assert [(port.name, port.dtype, port.shape) for port in inputs] == [
        ("scalar", "float32", ()),
        ("no_rank", "float32", None),
        ("negative", "float32", (None, 0)),
        ("many", "sequence", None),
        ("maybe", "optional", None),
        ("map", "map", None),
    ]


@pytest.mark.parametrize("ir_version", [3, 8])
def test_inputs_with_a_value_in_the_file_are_those_that_onnxruntime_lets_one_replace(
    ir_version: int, tmp_path: Path
) -> None:
    import onnxruntime as ort

    graph = "(float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }"
    path = save(tmp_path, "m", graph, {"w": WEIGHTS[:2]}, ir_version=ir_version, opset=9)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    ports = read_signature(path).inputs
    assert [port.name for port in ports if not port.has_default] == [port.name for port in session.get_inputs()]
    overridable = [port.name for port in session.get_overridable_initializers()]
    assert [port.name for port in ports if port.has_default] == overridable


def test_missing_external_data_is_named_even_when_the_signature_was_read_before(tmp_path: Path) -> None:
    path = add_constant(tmp_path, "ext", WEIGHTS, external="weights.bin")
    read_signature(path)
    (tmp_path / "weights.bin").unlink()
    error = refused(path)
    assert error.code == "external_data_missing"
    assert "'weights.bin'" in error.message


@pytest.mark.parametrize("location", ["../weights.bin", "a/../../weights.bin", "/etc/hostname", "a\0b"])
def test_external_data_outside_of_the_folder_is_refused(location: str, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    path = add_constant(folder, "ext", WEIGHTS, external="inside.bin")
    assert refused(with_location(path, location)).code == "external_data_outside"


def test_external_data_behind_a_link_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = add_constant(folder, "ext", WEIGHTS, external="weights.bin")
    (folder / "weights.bin").rename(tmp_path / "elsewhere.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "elsewhere.bin")
    assert refused(path).code == "external_data_outside"


def test_a_download_cache_that_links_model_and_weights_into_one_folder_is_read(tmp_path: Path) -> None:
    """Model hubs keep files under their hashes and link to them by name; ONNX Runtime loads those too."""
    blobs, names = tmp_path / "blobs", tmp_path / "names"
    blobs.mkdir()
    names.mkdir()
    path = add_constant(blobs, "ext", WEIGHTS, external="weights.bin")
    for name in ("ext.onnx", "weights.bin"):
        (names / name).symlink_to(blobs / name)
    assert read_signature(names / "ext.onnx").weight_bytes == read_signature(path).weight_bytes == WEIGHTS.nbytes


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "is empty"),
        (b"hello, this is no model at all", "no ONNX model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(64), "no ONNX model"),
        (b"\x08\x08", "no graph"),
    ],
)
def test_what_is_no_model_is_refused(content: bytes, part: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert part in refused(path).message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs links and pipes of a Unix")
def test_links_in_a_circle_and_pipes_are_refused(tmp_path: Path) -> None:
    path = add_constant(tmp_path, "m", WEIGHTS, external="w.bin")
    (tmp_path / "w.bin").unlink()
    (tmp_path / "w.bin").symlink_to("w.bin")
    (tmp_path / "link.onnx").symlink_to("link.onnx")
    os.mkfifo(tmp_path / "pipe.onnx")
    for bad in (path, tmp_path / "link.onnx", tmp_path / "pipe.onnx", tmp_path / "a\0b.onnx"):
        assert refused(bad).code == "file_missing"


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "none.onnx").message
    assert "is a folder" in refused(tmp_path).message


def test_a_file_cut_off_inside_its_graph_is_refused_wherever_the_cut_is(tmp_path: Path) -> None:
    path = save(tmp_path, "m", DOUBLE, {"w": WEIGHTS})
    data = path.read_bytes()
    model = onnx.load_from_string(data)
    end_of_graph = data.index(model.graph.SerializeToString()) + model.graph.ByteSize()
    for length in range(1, end_of_graph):
        cut = tmp_path / f"{length}.onnx"
        cut.write_bytes(data[:length])
        assert refused(cut).code == "model_broken"


def test_damaged_bytes_never_raise_anything_else(tmp_path: Path) -> None:
    """2,000 copies with up to eight bytes changed, inserted or removed: each is read or refused."""
    models = (add_constant(tmp_path, "m", WEIGHTS, external="w.bin"), branching(tmp_path, 2))
    whole = [path.read_bytes() for path in models]
    random = np.random.default_rng(5)
    refusals = 0
    for index in range(2000):
        damaged = bytearray(whole[index % 2])
        for _ in range(random.integers(1, 9)):
            at = int(random.integers(len(damaged)))
            length = int(random.integers(0, 3))
            damaged[at : at + int(random.integers(0, 3))] = random.bytes(length)
        path = tmp_path / f"f{index}.onnx"
        path.write_bytes(bytes(damaged))
        try:
            stamp(path)
        except InputError:
            refusals += 1
        path.unlink()
    assert refusals > 500


@pytest.mark.parametrize(("dim", "count"), [(2**62, 1_000_000), (-1, 1)])
def test_weights_of_an_impossible_shape_are_refused_at_once(dim: int, count: int, tmp_path: Path) -> None:
    """The product of a million dimensions would have 19 million digits; the bound is a tenth of a second."""
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], []))
    tensor = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT)
    tensor.dims.extend([dim] * count)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    started = time.perf_counter()
    assert refused(tmp_path / "m.onnx").code == "model_broken"
    assert time.perf_counter() - started < 0.1


def varint(value: int) -> bytes:
    head = b""
    while value > 0x7F:
        head, value = head + bytes([value & 0x7F | 0x80]), value >> 7
    return head + bytes([value])


def test_a_file_of_one_gigabyte_is_read_without_its_weights(tmp_path: Path) -> None:
    """The weights are a hole in the file. onnx.load takes 20 s for such a file, the bound is half a second."""
    size = 1 << 30
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size // 4]).SerializeToString()
    raw = b"\x4a" + varint(size)  # field 9, raw_data
    initializer = b"\x2a" + varint(len(tensor) + len(raw) + size) + tensor + raw  # field 5
    rest = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [of_type("x", 1, ["n"])], [])
    after = rest.SerializeToString()
    head = b"\x3a" + varint(len(initializer) + size + len(after)) + initializer  # field 7, graph
    path = tmp_path / "big.onnx"
    with path.open("wb") as file:
        file.write(head)
        file.seek(len(head) + size)
        file.write(after)
    started = time.perf_counter()
    signature = read_signature(path)
    assert time.perf_counter() - started < 0.5
    assert signature.weight_bytes == size
    assert signature.inputs == (TensorPort("x", "float32", ("n",)),)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = save(tmp_path, "m", DOUBLE)
    before = stamp(path)
    assert read_signature(path) is read_signature(path)
    save(tmp_path, "m", "(float[7] x) => (float[7] y) { y = Neg(x) }")
    assert read_signature(path).inputs[0].shape == (7,)
    assert stamp(path) != before


def test_changed_external_data_changes_the_stamp(tmp_path: Path) -> None:
    path = add_constant(tmp_path, "ext", WEIGHTS, external="weights.bin")
    before = stamp(path)
    (tmp_path / "new.bin").write_bytes(bytes(WEIGHTS.nbytes + 1))
    (tmp_path / "new.bin").rename(tmp_path / "weights.bin")
    assert stamp(path) != before
