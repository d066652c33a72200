"""Documents that break things, and what to look at afterwards."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from tests.server.kit import Server

NODES = str(Path(__file__).parent / "fault_nodes")


def fault(how: str, salt: str = "") -> dict[str, Any]:
    """Return a document whose only node does it."""
    node = {"class_type": "DoFault", "inputs": {"how": how, "salt": salt}, "_meta": {"title": "Trouble"}}
    return {"version": 1, "nodes": {"1": node}}


def metric(server: Server, name: str) -> float:
    """Return the value of a metric without labels."""
    lines = server.call("GET", "/metrics").body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and waits to be noticed does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def group_of(pid: int) -> list[int]:
    """Return the processes that run in a process's group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found
