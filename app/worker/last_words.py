"""What a worker was doing when it died: written into shared memory, which outlives it where messages may not.

A node that crashes the process at once takes along every event that still waited to be sent.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)

_BYTES = 1024


class LastWords:
    """The worker's side: `say` costs a microsecond, and what it said last can be read after any death."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _BYTES)

    def say(self, run: str, node: str = "") -> None:
        """Note the run in hand and the node that begins."""
        text = f"{run}\n{node}".encode("utf-8", "replace")[:_BYTES]
        self._memory[:] = text.ljust(_BYTES, b"\0")


def make_note(folder: Path) -> Path | None:
    """Return a new, empty note for a worker, in a folder that is made if it is missing; None when it cannot be.

    Its bytes are written, not only counted: a page that finds no room on a full disk would end the worker.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix="worker-", suffix=".note", dir=folder)
    except OSError as error:
        log.warning("the worker has no note for its last words: %s", error)
        return None
    try:
        written = os.write(descriptor, bytes(_BYTES))
    except OSError as error:
        written = 0
        log.warning("the worker has no note for its last words: %s", error)
    finally:
        os.close(descriptor)
    if written == _BYTES:
        return Path(name)
    with contextlib.suppress(OSError):
        os.unlink(name)
    return None


def read_note(path: Path | None) -> tuple[str, str]:
    """Return the run and the node that a worker noted last, empty if none, and delete the note."""
    if path is None:
        return "", ""
    text = ""
    with contextlib.suppress(OSError):
        text = path.read_bytes().rstrip(b"\0").decode("utf-8", "replace")
        path.unlink()
    run, _, node = text.partition("\n")
    return run, node
