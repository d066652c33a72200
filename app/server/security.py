"""Who may ask for what: the token, the Host and Origin of browsers, and headers that keep answers passive."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from app.server.errors import ApiError
from app.server.settings import ServerSettings, is_loopback

COOKIE = "ortloom_token"
OPEN_ROUTES = frozenset({"/health"})
"""What is answered without a token, whatever the address."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob: data:; "
        "style-src 'self' 'unsafe-inline'; connect-src 'self' ws: wss:; object-src 'none'; base-uri 'none'; "
        "frame-ancestors 'none'; form-action 'self'"
    ),
}


async def add_headers(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Add the headers that every answer has; a signal handler for `on_response_prepare`."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def guard(settings: ServerSettings) -> Middleware:
    """Return the middleware that refuses what no client of the user would send. Refusals raise ApiError 401 and 403."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        _check_host(request, settings)
        _check_origin(request)
        if request.path in OPEN_ROUTES:
            return await handler(request)
        if settings.token is None:
            if not settings.is_loopback:
                message = (
                    "found a request to an address beyond this machine while the server has no token; start it with "
                    "--token T, and send that"
                )
                raise ApiError(403, message, "no_token")
            return await handler(request)
        if not _has_token(request, settings.token):
            message = (
                "found no valid token, accepted the one that the server was started with; send it as "
                "`Authorization: Bearer T`"
            )
            raise ApiError(401, message, "bad_token")
        response = await handler(request)
        if "token" in request.query and request.path == "/" and not response.prepared:
            response.set_cookie(COOKIE, settings.token, httponly=True, samesite="Strict", path="/")
        return response

    return check


def _check_host(request: web.Request, settings: ServerSettings) -> None:
    """Refuse a foreign name for a server that only this machine reaches: it was pointed here to read answers.

    Elsewhere the token guards: the name under which the server is reached is not known here.
    """
    if not settings.is_loopback:
        return
    host = _split_host(request.headers.get("Host", ""))
    if host is None or not is_loopback(host[0]):
        shown = request.headers.get("Host", "")[:60]
        message = f"found Host {shown!r}, accepted localhost or 127.0.0.1; open this server by one of these names"
        raise ApiError(403, message, "foreign_host")


def _check_origin(request: web.Request) -> None:
    """Refuse what another site makes a browser send, other than opening a page of this server."""
    headers = request.headers
    is_upgrade = headers.get("Upgrade", "").lower() == "websocket"
    changes = request.method not in ("GET", "HEAD")
    origin = headers.get("Origin")
    if (changes or is_upgrade) and origin is not None and not _is_same(origin, headers.get("Host", "")):
        raise _foreign(origin)
    if headers.get("Sec-Fetch-Site") == "cross-site":
        opens_page = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
        if changes or is_upgrade or not opens_page or request.path.startswith("/api"):
            raise _foreign(origin or "another site")


def _foreign(origin: str) -> ApiError:
    message = f"found a request from {origin[:60]!r}, accepted those of this server's own pages; open the page here"
    return ApiError(403, message, "foreign_origin")


def _is_same(origin: str, host: str) -> bool:
    """Return whether an Origin is the server's own: same host and port, absent ports being the scheme's own."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return False
    asked = _split_host(host)
    if parts.scheme not in ("http", "https") or parts.hostname is None or asked is None:
        return False
    usual = 443 if parts.scheme == "https" else 80
    return (parts.hostname.lower(), port or usual) == (asked[0], asked[1] or usual)


def _split_host(host: str) -> tuple[str, int | None] | None:
    """Return name and port of a Host header, or None when it is none."""
    try:
        parts = urlsplit(f"//{host}")
        if parts.hostname is None or parts.path or parts.query or parts.username is not None:
            return None
        return parts.hostname.lower(), parts.port
    except ValueError:
        return None


def _has_token(request: web.Request, token: str) -> bool:
    given = [request.cookies.get(COOKIE, "")]
    if request.method == "GET":
        given.append(request.query.get("token", ""))
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        given.append(value.strip())
    elif scheme.lower() == "basic":
        given.append(_password(value.strip()))
    wanted = token.encode("utf-8", "surrogateescape")
    matches: list[Any] = [hmac.compare_digest(item.encode("utf-8", "surrogateescape"), wanted) for item in given]
    return any(matches)


def _password(text: str) -> str:
    """Return the password of Basic credentials: clients made for other servers often know no other way."""
    try:
        return base64.b64decode(text, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
