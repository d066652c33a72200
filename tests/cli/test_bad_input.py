"""Bad input: one sentence on stderr, exit code 1, no traceback, nothing lost."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from tests.cli.kit import WORKFLOWS, changed, ortloom

Nodes = dict[str, Any]
UNET = WORKFLOWS / "models" / "emoji-diffusion" / "unet" / "model.onnx"


def refused(*arguments: str | Path, lines: int = 1) -> str:
    """Run a command that must fail with sentences; returns them."""
    result = ortloom(*arguments)
    assert result.code == 1, result.out
    assert result.out == ""
    assert "Traceback" not in result.err
    assert len(result.err.strip().splitlines()) == lines, result.err
    return result.err


def set_input(title: str, name: str, value: Any) -> Callable[[Nodes], None]:
    return lambda nodes: nodes[title]["inputs"].__setitem__(name, value)


def drop_input(title: str, name: str) -> Callable[[Nodes], None]:
    return lambda nodes: nodes[title]["inputs"].pop(name)


def retype(title: str, class_type: str) -> Callable[[Nodes], None]:
    return lambda nodes: nodes[title].__setitem__("class_type", class_type)


def unpair(nodes: Nodes) -> None:
    nodes["Text encoder"]["inputs"]["input_ids"] = nodes["Both prompts"]["inputs"]["positive"]


def misplace_sample(nodes: Nodes) -> None:
    """Feed the sample where the text belongs; at cfg 1, because no pair is left."""
    nodes["UNet"]["inputs"]["encoder_hidden_states"] = ["9", "sample"]
    nodes["Denoise"]["inputs"]["cfg"] = 1.0


def circle(nodes: Nodes) -> None:
    """Feed the decoder's own output back into its input."""
    nodes["Unscale latent"]["inputs"]["latent"] = ["12", "sample"]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (retype("UNet", "ONNXComponnt"), ["UNet", "did you mean ONNXComponent"]),
        (drop_input("Denoise", "prediction"), ["Denoise", "input prediction", "found nothing"]),
        (set_input("Save", "image", ["1", "text"]), ["input image", "found STRING, accepted IMAGE"]),
        (set_input("UNet", "sample", ["2", "input_ids"]), ["input sample", "int64", "float32", "Cast"]),
        (misplace_sample, ["encoder_hidden_states", "4 dimensions do not fit 3"]),
        (set_input("VAE decoder", "latent_sample", ["6", "last_hidden_state"]), ["dimensions do not fit", "Reshape"]),
        (set_input("Save", "image", ["99", "image"]), ["node '99'", "not in the workflow"]),
        (set_input("Save", "image", ["13", "picture"]), ["'picture'", "accepted one of image"]),
        (set_input("Denoise", "cfg", 1000.0), ["input cfg", "from 0 to 100"]),
        (set_input("Denoise", "cfg", "high"), ["input cfg", "found 'high'"]),
        (set_input("Denoise", "steps", 0), ["input steps", "found 0", "1 to 10000"]),
        (set_input("Denoise", "start_step", 20), ["input start_step", "found 20", "0 to 19"]),
        (set_input("Denoise", "timesteps", [999.0, 500.0]), ["input steps", "2 explicit timesteps"]),
        (unpair, ["Denoise", "input cfg", "found 3 while no guidance pair", "Guidance Pair"]),
        (circle, ["circle", "Unscale latent", "VAE decoder"]),
        (set_input("UNet", "model", "../../etc/passwd"), ["input model", "outside"]),
        (set_input("UNet", "model", "/etc/passwd"), ["input model", "outside"]),
        (set_input("UNet", "model", "emoji-diffusion/none.onnx"), ["input model", "not there"]),
        (set_input("UNet", "model", "emoji-diffusion/tokenizer/tokenizer.json"), ["input model", "no ONNX model"]),
        (set_input("Tokenize prompt", "tokenizer", "emoji-diffusion/unet/model.onnx"), ["input tokenizer"]),
        (set_input("Save", "filename_prefix", "../../outside"), ["input filename_prefix"]),
        (set_input("Empty latent", "width", 100), ["input width", "100"]),
        (set_input("Empty latent", "batch_size", 10**9), ["input batch_size"]),
    ],
)
def test_a_workflow_that_cannot_run_says_why(change: Callable[[Nodes], None], parts: list[str], tmp_path: Path) -> None:
    error = refused("run", changed(tmp_path, "text-to-image", change), "--out", tmp_path / "out")
    for part in parts:
        assert part in error, error
    assert not list((tmp_path / "out").glob("*.png"))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("not json", "found no JSON"),
        ("[1]", "found a list"),
        ("{}", "found an empty object"),
        ('{"a": 1}', "an object"),
    ],
)
def test_a_file_that_is_no_workflow_is_refused(text: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_text(text)
    assert part in refused("run", path)
    assert part in refused("check", path)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["run", "none.json"], "no such file"),
        (["run", "text-to-imge"], "did you mean text-to-image or"),
        (["run", "text-to-image", "--models", "/no/folder"], "found no folder"),
        (["run", "text-to-image", "--device", "toaster"], "accepted one of auto, cpu, cuda"),
        (["run", "text-to-image", "--set", "nonsense"], "NODE.INPUT=VALUE"),
        (["run", "text-to-image", "--set", "Denois.cfg=3"], "did you mean Denoise?"),
        (["run", "text-to-image", "--set", "Denoise.cgf=3"], "did you mean cfg?"),
        (["run", "text-to-image", "--set", "Denoise.latent=3"], "wired input"),
        (["nodes", "DenoiseLop"], "did you mean DenoiseLoop or"),
        (["inspect", "none.onnx"], "cannot be read"),
    ],
)
def test_a_wrong_argument_is_explained(arguments: list[str], part: str) -> None:
    assert part in refused(*arguments)


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    def change(nodes: Nodes) -> None:
        set_input("Denoise", "cfg", -1)(nodes)
        retype("UNet", "Unknown")(nodes)
        drop_input("Save", "image")(nodes)
        set_input("VAE decoder", "model", "gone.onnx")(nodes)
        nodes["Save"]["inputs"]["image"] = ["13", "image"]
        set_input("Empty latent", "height", "tall")(nodes)

    refused("check", changed(tmp_path, "text-to-image", change), lines=4)


def broken_model(folder: Path, kind: str) -> None:
    """Write unet.onnx into a folder, broken in one way."""
    data = UNET.read_bytes()
    path = folder / "unet.onnx"
    if kind in ("missing external data", "external data outside"):
        model = onnx.load(UNET)
        onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
        if kind == "missing external data":
            (folder / "weights.bin").unlink()
        else:
            (folder / "weights.bin").rename(folder.parent / "weights.bin")
            _relocate(path)
        return
    contents = {
        "empty": b"",
        "truncated": data[: len(data) // 2],
        "garbage": bytes(range(256)) * 40,
        "text": b"this is no model",
    }
    path.write_bytes(contents[kind])


def _relocate(path: Path) -> None:
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../weights.bin"
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("empty", "which is empty"),
        ("truncated", "cut off"),
        ("garbage", "no ONNX model"),
        ("text", "no ONNX model"),
        ("missing external data", "without its weights file 'weights.bin'"),
        ("external data outside", "outside of its folder"),
    ],
)
def test_a_broken_model_is_refused_by_run_check_and_inspect(kind: str, part: str, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    broken_model(models, kind)
    path = changed(tmp_path, "text-to-image", set_input("UNet", "model", "unet.onnx"))
    assert part in refused("run", path, "--models", models)
    assert part in refused("check", path, "--models", models)
    assert part in refused("inspect", models / "unet.onnx")


def bits_flipped(folder: Path) -> None:
    """Write a model whose signature reads well but which ONNX Runtime cannot load: an operator that does not exist."""
    model = onnx.load(UNET)
    model.graph.node[5].op_type = "NoSuchOperator"
    (folder / "unet.onnx").write_bytes(model.SerializeToString())


def test_a_model_that_onnxruntime_refuses_is_one_sentence(tmp_path: Path) -> None:
    bits_flipped(tmp_path)
    error = refused(
        "run", changed(tmp_path, "text-to-image", set_input("UNet", "model", "unet.onnx")), "--models", tmp_path
    )
    assert "NoSuchOperator" in error
    assert "UNet (node 10), input model" in error


def test_not_a_number_in_a_latent_names_the_step_it_appeared_in(tmp_path: Path) -> None:
    """This denoiser divides by max(timestep - 600, 0): the first step at or below timestep 600 of 4 gives no number."""
    nodes = [
        helper.make_node("Sub", ["timestep", "limit"], ["over"]),
        helper.make_node("Relu", ["over"], ["left"]),
        helper.make_node("Div", ["left", "left"], ["one"]),
        helper.make_node("Mul", ["sample", "one"], ["out_sample"]),
    ]
    sample = helper.make_tensor_value_info("sample", TensorProto.FLOAT, ["b", 4, "h", "w"])
    timestep = helper.make_tensor_value_info("timestep", TensorProto.FLOAT, [1])
    out = helper.make_tensor_value_info("out_sample", TensorProto.FLOAT, ["b", 4, "h", "w"])
    limit = numpy_helper.from_array(np.float32(600), "limit")
    graph = helper.make_graph(nodes, "nan", [sample, timestep], [out], [limit])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "nan.onnx"
    )

    def change(each: Nodes) -> None:
        unet = each["UNet"]["inputs"]
        each["UNet"]["inputs"] = {"model": "nan.onnx", "sample": unet["sample"], "timestep": unet["timestep"]}
        each["Denoise"]["inputs"].update(steps=4, cfg=1.0)

    error = refused("run", changed(tmp_path, "text-to-image", change), "--models", tmp_path)
    assert "NaN" in error
    assert "at step 3 of 4" in error, "timesteps of DPM++ 2M with 4 steps: 999, 749, 500, 250"


def test_running_out_of_memory_is_a_sentence(tmp_path: Path) -> None:
    """65,536 x 65,536 float32 products need 16 GiB; an address space limit stands in for a full machine."""
    import subprocess
    import sys

    one = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])
    two = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "m"])
    out = helper.make_tensor_value_info("z", TensorProto.FLOAT, [])
    nodes = [
        helper.make_node("MatMul", ["x", "y"], ["product"]),
        helper.make_node("ReduceSum", ["product"], ["z"], keepdims=0),
    ]
    graph = helper.make_graph(nodes, "outer", [one, two], [out])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "outer.onnx"
    )
    nodes_json = (
        '{"nodes": {"x": {"class_type": "TensorFill", "inputs": {"shape": [65536, 1]}},'
        '"y": {"class_type": "TensorFill", "inputs": {"shape": [1, 65536]}},'
        '"m": {"class_type": "ONNXComponent", "inputs": {"model": "outer.onnx", "x": ["x", 0], "y": ["y", 0]}},'
        '"s": {"class_type": "ShowValue", "inputs": {"value": ["m", "z"]}}}}'
    )
    (tmp_path / "w.json").write_text(nodes_json)
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30));"
        "from app.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "run", str(tmp_path / "w.json"), "--models", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=WORKFLOWS.parent, timeout=120, check=False)
    assert result.returncode == 1
    assert "node m" in result.stderr
    assert "memory" in result.stderr
    assert "Traceback" not in result.stderr


def huge_png(path: Path) -> None:
    """Write a PNG of 30,000 x 30,000 pixels that is small on disk."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


def truncated_png(path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:3000])


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (huge_png, ["900000000 pixels"]),
        (truncated_png, ["x.png"]),
        (lambda path: path.write_text("no picture"), ["x.png"]),
        (lambda path: None, ["'x.png'", "not there"]),
    ],
)
def test_a_picture_that_cannot_be_read_is_refused(
    make: Callable[[Path], Any], parts: list[str], tmp_path: Path
) -> None:
    make(tmp_path / "x.png")
    error = refused(
        "run", "image-to-image", "--inputs", tmp_path, "--set", "Picture.image=x.png", "--out", tmp_path / "out"
    )
    for part in ("Picture", "input image", *parts):
        assert part in error, error


@pytest.mark.parametrize("template", ["preview-every-step", "text-to-image", "masked-diffusion"])
def test_an_output_folder_that_cannot_be_is_refused(template: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused("run", template, "--out", tmp_path / "file" / "out")


def test_a_picture_without_a_workflow_cannot_be_run(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "plain.png")
    assert "workflow" in refused("run", tmp_path / "plain.png")
