"""Names from clients as paths that never leave their folder."""

from __future__ import annotations

import re
from pathlib import Path

from app.server.errors import ApiError

MAX_NAME_BYTES = 240
"""File systems take 255; what is written first under a temporary name needs some of them."""
MAX_BYTES = 1024
"""Linux takes paths of 4096 bytes, macOS of 1024; also, Python makes missing folders by a call within a call."""

_DEVICES = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³]) *(\..*)?", re.IGNORECASE)
"""With whatever suffix, and with spaces before it, these open a device on Windows."""
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"|?*\\\ud800-\udfff]')
_UNFINISHED = re.compile(r"\..*\.part", re.IGNORECASE)
"""Names of files that are still being written."""


def inside(root: Path, *names: str) -> Path:
    """Return the path of `names` inside of a folder; each may hold / between its parts, and empty ones are left out.

    The path need not exist. Raises ApiError 400 for a name that some system cannot store or reads as something else
    (control characters, backslashes, drive letters, device names such as CON, dots or spaces at an end), and 403 for
    one that leaves the folder: absolute, with `..`, or through a link. What looks percent-encoded is taken as it is:
    the server has decoded once, and whoever decodes twice opens a door. Hidden names that end in `.part` are refused
    too: they are of files still being written. Other hidden names are fine.
    """
    parts: list[str] = []
    for name in names:
        if name.startswith(("/", "\\\\")) or re.match(r"[A-Za-z]:", name):
            raise _outside(name)
        pieces = name.split("/") if name else []
        for part in pieces:
            _check_part(part, name)
        parts.extend(pieces)
    if len("/".join(parts).encode()) > MAX_BYTES:
        raise _bad("/".join(parts), f"more than {MAX_BYTES} bytes")
    if not parts:
        raise ApiError(400, "found no name, accepted the name of a file; send one", "bad_name")
    path = root.joinpath(*parts)
    try:
        resolved, base = path.resolve(), root.resolve()
    except (OSError, RuntimeError):  # links in a circle (RuntimeError before Python 3.13)
        raise _outside("/".join(parts)) from None
    if not resolved.is_relative_to(base) or resolved == base:
        raise _outside("/".join(parts))
    return path


def _check_part(part: str, name: str) -> None:
    if part == "..":
        raise _outside(name)
    if part in ("", "."):
        raise _bad(name, "an empty part or a single dot")
    if _FORBIDDEN.search(part):
        raise _bad(name, 'a control character or one of < > : " | ? * and \\')
    if part[-1] in ". " or part[0] == " ":
        raise _bad(name, "a dot at the end or a space at an end of a part")
    if _DEVICES.fullmatch(part):
        raise _bad(name, "a name that is a device on some systems")
    if _UNFINISHED.fullmatch(part):
        raise _bad(name, "a name of files that are still being written")
    if len(part.encode()) > MAX_NAME_BYTES:
        raise _bad(name, f"a part of more than {MAX_NAME_BYTES} bytes")


def _bad(name: str, what: str) -> ApiError:
    return ApiError(400, f"found {_shown(name)} with {what}, accepted a plain name; choose another", "bad_name")


def _outside(name: str) -> ApiError:
    message = f"found {_shown(name)}, which leads out of its folder, accepted a name inside of it; leave out .. and /"
    return ApiError(403, message, "file_outside")


def _shown(name: str) -> str:
    """Return the start of a name, quoted; half a surrogate pair would not fit into an answer."""
    return repr(name[:60].encode("ascii", "backslashreplace").decode())
