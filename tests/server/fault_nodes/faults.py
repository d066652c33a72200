"""Nodes that do to a worker whatever a node may do."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Annotated, Any

from app.engine.events import Output
from app.graph.node import Help, node


@node(category="test", output_node=True)
def do_fault(context: Any, how: Annotated[str, Help("what to do")], salt: Annotated[str, Help("differs")] = "") -> None:
    """Do it."""
    if how == "abort":
        os.abort()
    elif how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    elif how == "sys.exit":
        sys.exit(4)
    elif how == "allocate":
        held = []
        while True:
            held.append(bytearray(os.urandom(1 << 20)) * 64)
    elif how == "spin":
        while True:
            pass
    elif how == "hold":  # a call that never gives other threads of the process a turn
        ctypes.PyDLL(None).sleep(1000)
    elif how.startswith("sleep"):
        time.sleep(float(how.split()[1]))
    elif how == "raise":
        raise RuntimeError("boom\nsecond line")
    elif how == "nan":
        context.emit(Output(context.node, "value", value=float("nan")))
        return
    context.emit(Output(context.node, "text", value=f"survived {how} {salt}"))
