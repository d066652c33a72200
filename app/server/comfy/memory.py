"""How much memory this machine has, without a dependency for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple


class Memory(NamedTuple):
    """Bytes of main memory; 0 where the system does not tell."""

    total: int
    free: int


def memory() -> Memory:
    """Return the machine's main memory; free counts what the system would give back, such as file caches."""
    if sys.platform == "win32":
        return _of_windows()
    return _of_proc() or Memory(_pages("SC_PHYS_PAGES"), _pages("SC_AVPHYS_PAGES"))


def _of_proc() -> Memory | None:
    """Read Linux's /proc/meminfo, whose numbers are in units of 1024 bytes (proc_meminfo(5))."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    values = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    total, free = values.get("MemTotal"), values.get("MemAvailable")
    return Memory(int(total[0]) << 10, int(free[0]) << 10) if total and free else None


def _pages(name: str) -> int:
    """Return a count of memory pages in bytes (sysconf(3)); macOS does not count the free ones."""
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


def _of_windows() -> Memory:
    """Ask GlobalMemoryStatusEx, whose MEMORYSTATUSEX is two 32 bit and seven 64 bit numbers."""
    import ctypes
    import struct

    layout = struct.Struct("=II7Q")
    buffer = ctypes.create_string_buffer(layout.pack(layout.size, *[0] * 8), layout.size)
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 - the attribute exists on Windows only
    if not kernel.GlobalMemoryStatusEx(buffer):
        return Memory(0, 0)
    _, _, total, free, *_ = layout.unpack(buffer.raw)
    return Memory(total, free)
