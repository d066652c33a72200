"""Devices asked for, devices used, and why not the others. On a machine without CUDA."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.runtime.providers import DEVICES, choose

CPU = "CPUExecutionProvider"
has_cuda = choose("cuda").providers[0] != CPU
without_cuda = pytest.mark.skipif(has_cuda, reason="this machine has CUDA")


def test_the_cpu_is_used_without_trying_anything_else() -> None:
    choice = choose("cpu")
    assert (choice.providers, choice.why_not, choice.fell_back) == ((CPU,), (), False)


@pytest.mark.parametrize("device", DEVICES)
def test_every_choice_ends_in_the_cpu(device: str) -> None:
    assert choose(device).providers[-1] == CPU


@without_cuda
def test_auto_says_why_each_better_device_is_not_used() -> None:
    choice = choose("auto")
    assert choice.device == "auto"
    assert not choice.fell_back, "nothing else was asked for"
    if choice.providers == (CPU,):
        tried = [device for device, _ in choice.why_not]
        assert tried == ["cuda", "migraphx", "rocm", "directml", "coreml", "openvino"]
        assert all(reason for _, reason in choice.why_not)


@without_cuda
@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_a_device_that_does_not_work_falls_back_and_says_so(device: str) -> None:
    choice = choose(device)
    assert choice.providers == (CPU,)
    assert choice.fell_back
    [(name, reason)] = choice.why_not
    assert name == device
    assert reason
    assert "\n" not in reason


def test_a_device_is_probed_once() -> None:
    assert choose("cuda") is choose("cuda")


def test_probing_prints_nothing(tmp_path: Path) -> None:
    """ONNX Runtime itself prints an error and a banner for each provider that it cannot load."""
    code = f"from app.runtime.providers import choose; [choose(device) for device in {DEVICES}]"
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert (result.stdout, result.stderr) == ("", "")
