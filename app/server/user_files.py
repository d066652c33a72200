"""Writing files of the user: whole, one change at a time, and in a sentence what the system refuses."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from uuid import uuid4

from app.server.errors import ApiError

_CHANGING = Lock()
"""Held from looking at what is there until the change is in place: two changes must not both find a name free, or a
version unchanged. There is one for all, because ComfyUI's userdata and our saved workflows are the same files."""


@contextmanager
def changing(name: str) -> Iterator[None]:
    """Change files while nobody else does. Raises ApiError for what the system refuses; see `unwritable`."""
    with _CHANGING:
        try:
            yield
        except OSError as error:
            raise unwritable(error, name) from error


def write_whole(path: Path, data: bytes) -> None:
    """Put a file in place only when it is whole and on the disk; missing folders are made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{uuid4().hex}.part")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def unwritable(error: OSError, name: str) -> ApiError:
    """Return the answer to a file that the system refuses to write: 400 its name, 409 its place, 507 all else."""
    shown = name[-100:]
    if error.errno in (errno.ENAMETOOLONG, errno.EINVAL):
        message = f"found {shown!r}, which the system does not take as a file name; choose a shorter, plainer one"
        return ApiError(400, message, "bad_name")
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        message = f"found {shown!r} to be in the way of a file or folder of that name; choose another name"
        return ApiError(409, message, "name_taken")
    reason = error.strerror or type(error).__name__
    message = f"found no way to write {shown!r} ({reason}); free space on the disk or permit it, then retry"
    return ApiError(507, f"{message}; what was there is unchanged", "file_unwritable")
