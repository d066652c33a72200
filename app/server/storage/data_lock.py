"""One server per data folder: a lock that the operating system frees when its process ends, however it ends."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK_NAME = "ortloom.lock"
_LOCKED_BYTE = 1 << 30  # Windows refuses to read what is locked; the text at the start must stay readable


class DataFolderInUse(Exception):
    """Another server holds the data folder. The message names its process and its address."""


class DataLock:
    """The right of one process to use a data folder.

    It must not be held across a fork without exec: the child would hold it too, and keep it when the parent is killed.
    """

    def __init__(self, data: Path) -> None:
        """data: the folder; it must exist."""
        self.path = data / LOCK_NAME
        self._descriptor: int | None = None

    def acquire(self, host: str, port: int) -> None:
        """Take the lock and leave pid, host, port and start time for the next who asks.

        Raises DataFolderInUse when another process has it, OSError when the file system gives no locks.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _lock(descriptor):
                raise DataFolderInUse(_sentence(self.path.parent, _holder(descriptor)))
            _write(descriptor, {"pid": os.getpid(), "host": host, "port": port, "started": time.time()})
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; nothing happens when it is not held. The file stays: deleting it could free another's."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def _lock(descriptor: int) -> bool:
    """Return whether the lock could be taken at once."""
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


def _write(descriptor: int, holder: dict[str, Any]) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, json.dumps(holder).encode())


def _holder(descriptor: int) -> dict[str, Any]:
    """Return what the holder left, or nothing while it is still writing."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        holder = json.loads(os.read(descriptor, 4096))
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _sentence(data: Path, holder: dict[str, Any]) -> str:
    who = "another Ortloom server"
    if {"pid", "host", "port"} <= holder.keys():
        host = f"[{holder['host']}]" if ":" in str(holder["host"]) else holder["host"]
        who = f"another Ortloom server, process {holder['pid']} at http://{host}:{holder['port']}"
    fix = "use that one, end it first, or give this one a folder of its own with --data"
    return f"found {who}, on the data folder {data}, accepted one server per folder; {fix}"
