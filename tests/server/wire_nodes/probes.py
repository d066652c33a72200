"""Node types with the names and inputs of those that the exchanges with ComfyUI were recorded with."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np

from app.engine.cancel import RunCancelled
from app.engine.events import Output, Preview, StepFinished
from app.graph.errors import InputError
from app.graph.node import Help, Image, Mask, Out, Range, node


@node(category="probe")
def stub_image(
    content: Annotated[Literal["WHITE", "BLACK", "NOISE"], Help("what is on it")] = "WHITE",
    height: Annotated[int, Range(1, 16384, 1, help="pixels")] = 64,
    width: Annotated[int, Range(1, 16384, 1, help="pixels")] = 64,
    batch_size: Annotated[int, Range(1, 16, 1, help="how many")] = 1,
) -> Annotated[Image, Out("image")]:
    """Give a picture of one colour."""
    return np.full((batch_size, height, width, 3), content == "WHITE", np.float32)


@node(category="probe")
def stub_mask(
    value: Annotated[float, Range(0, 1, help="everywhere")] = 1.0,
    height: Annotated[int, Range(1, 16384, 1, help="pixels")] = 64,
    width: Annotated[int, Range(1, 16384, 1, help="pixels")] = 64,
    batch_size: Annotated[int, Range(1, 16, 1, help="how many")] = 1,
) -> Annotated[Mask, Out("mask")]:
    """Give a mask of one value."""
    return np.full((batch_size, height, width), value, np.float32)


@node(category="probe")
def test_lazy_mix_images(
    image1: Annotated[Image, Help("first")], image2: Annotated[Image, Help("second")], mask: Annotated[Mask, Help("of")]
) -> Annotated[Image, Out("image")]:
    """Mix two pictures, which fails for different sizes."""
    return image1 * (1 - mask[..., None]) + image2 * mask[..., None]


@node(category="probe", output_node=True)
def probe_types(
    context: Any,
    s: Annotated[str, Help("text")],
    img: Annotated[Image, Help("picture")],
    i: Annotated[int, Range(0, 10, help="number")] = 1,
    f: Annotated[float, Range(0, 2.0, help="number")] = 1.0,
    b: Annotated[bool, Help("flag")] = True,
    c: Annotated[Literal["a", "b"], Help("choice")] = "a",
) -> Annotated[int, Out("int")]:
    """Take one of each type."""
    context.emit(Output(context.node, "text", value=f"{i} {f} {s} {b} {c}"))
    return i


@node(category="probe", output_node=True)
def probe_busy(
    context: Any,
    seconds: Annotated[float, Range(0, 100, help="how long")] = 1.0,
    salt: Annotated[Any, Help("differs")] = 0,
) -> None:
    """Take some time, ready to stop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if context.cancel.is_set:
            raise RunCancelled
        time.sleep(0.01)
    context.emit(Output(context.node, "text", value="done"))


@node(category="probe", output_node=True)
def probe_preview(context: Any, n: Annotated[int, Range(1, 50, 1, help="how many steps")] = 3) -> None:
    """Count steps and show a picture at each, slowly enough for all of them to be sent."""
    for step in range(n):
        context.emit(StepFinished(context.node, step + 1, n, 0.05))
        context.emit(Preview(context.node, np.full((64, 64, 3), 40 * step, np.uint8), step))
        time.sleep(0.05)
    context.emit(Output(context.node, "text", value="done"))


@node(category="probe")
def test_variadic_average(input1: Annotated[Image, Help("what is averaged")]) -> Annotated[Image, Out("image")]:
    """Give the picture back."""
    return input1


def _no_sevens(literals: Mapping[str, Any]) -> None:
    for name, value in literals.items():
        if value == 7.0:
            raise InputError(name, found=7, accepted="another number", fix="choose one")


@node(category="probe", check=_no_sevens)
def test_custom_validation5(
    input1: Annotated[float, Range(-10.0, 10.0, help="number")],
    input2: Annotated[float, Range(-10.0, 10.0, help="number")],
) -> Annotated[Image, Out("image")]:
    """Take any numbers but sevens."""
    return np.full((1, 8, 8, 3), input1 + input2, np.float32)
