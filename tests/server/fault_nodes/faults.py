"""Nodes that do to a worker whatever a node may do."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

from app.engine.events import Output, Preview
from app.graph.node import Help, node


class Unforeseen(BaseException):
    """What `except Exception` does not catch."""


class Unspeakable(Exception):
    """An error that fails when it is asked what is wrong."""

    def __str__(self) -> str:
        """Fail."""
        raise ValueError("no words")


def _abort(context: Any, argument: str) -> None:
    os.abort()


def _segfault(context: Any, argument: str) -> None:
    ctypes.string_at(0)


def _exit(context: Any, argument: str) -> None:
    os._exit(3)


def _sys_exit(context: Any, argument: str) -> None:
    sys.exit(4)


def _allocate(context: Any, argument: str) -> None:
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 20)) * 64)


def _spin(context: Any, argument: str) -> None:
    while True:
        pass


def _hold(context: Any, argument: str) -> None:
    """Call what never gives other threads of the process a turn."""
    ctypes.PyDLL(None).sleep(1000)


def _fork(context: Any, argument: str) -> None:
    """Leave a child behind that has all that was open, and die."""
    if os.fork() == 0:
        time.sleep(1000)
        os._exit(0)
    os.abort()


def _sleep(context: Any, argument: str) -> None:
    time.sleep(float(argument))


def _count(context: Any, argument: str) -> None:
    """Note in a file that this ran, at once and for good, and take a moment."""
    path, line = argument.split(" ")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)
    time.sleep(0.03)


def _raise(context: Any, argument: str) -> None:
    errors: dict[str, BaseException] = {"unforeseen": Unforeseen("boom"), "unspeakable": Unspeakable()}
    raise errors.get(argument, RuntimeError("boom\nsecond line"))


def _emit(context: Any, argument: str) -> None:
    """Show what cannot be shown."""
    endless: list[Any] = []
    endless += [endless, endless]
    things: dict[str, Any] = {
        "nan": Output(context.node, "value", value=float("nan")),
        "surrogate": Output(context.node, "value", value="\ud800"),
        "type": Output(context.node, 5, value="x"),  # type: ignore[arg-type]
        "path": Output(context.node, "x", path=5),  # type: ignore[arg-type]
        "step": Output(context.node, "x", step="first"),  # type: ignore[arg-type]
        "node": Output(5, "x"),  # type: ignore[arg-type]
        "digits": Output(context.node, "x", value=10**6000),
        "endless": Output(context.node, "x", value=endless),
        "large": Output(context.node, "x", value="x" * (17 << 20)),
        "float picture": Preview(context.node, np.zeros((4, 4, 3), np.float32)),
        "no picture": Preview(context.node, None),  # type: ignore[arg-type]
        "text": "what",
    }
    context.emit(things[argument])


_FAULTS: dict[str, Callable[[Any, str], None]] = {
    "abort": _abort,
    "segfault": _segfault,
    "exit": _exit,
    "sys.exit": _sys_exit,
    "allocate": _allocate,
    "spin": _spin,
    "hold": _hold,
    "fork": _fork,
    "sleep": _sleep,
    "count": _count,
    "raise": _raise,
    "emit": _emit,
}


@node(category="test", output_node=True)
def do_fault(context: Any, how: Annotated[str, Help("what to do")], salt: Annotated[str, Help("differs")] = "") -> None:
    """Do it."""
    name, _, argument = how.partition(" ")
    _FAULTS[name](context, argument)
    if name != "emit":
        context.emit(Output(context.node, "text", value=f"survived {how} {salt}"))
