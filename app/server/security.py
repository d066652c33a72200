"""Who may ask for what: the token, the Host and Origin of browsers, and headers that keep answers passive."""

from __future__ import annotations

import base64
import binascii
import hmac
from urllib.parse import quote, urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from app.server.errors import ApiError
from app.server.settings import ServerSettings, is_loopback

COOKIE = "ortloom_token"
OPEN_ROUTES = frozenset({"/health"})
"""What is answered without a token, whatever the address."""

_ERRORS = "surrogatepass"
"""Tokens and headers may hold bytes that are no UTF-8; those are compared as well."""

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
    """Add the headers that every answer has; a signal handler for `on_response_prepare`.

    That signal, other than a middleware, also comes for WebSockets and streamed files, before their headers are sent.
    """
    response.headers["Server"] = "Ortloom"  # versions of what is inside are nobody's business
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if response.status == 401:
        response.headers.setdefault("WWW-Authenticate", "Bearer")


def guard(settings: ServerSettings) -> Middleware:
    """Return the middleware that refuses what no client of the user would send. Refusals raise ApiError 401 and 403.

    An empty token is none: `--token "$UNSET"` must not open the server to everyone.
    """
    token = settings.token or None

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        _check_host(request, settings)
        _check_origin(request)
        if request.path in OPEN_ROUTES:
            return await handler(request)
        if token is None:
            if not settings.is_loopback:
                raise _no_token()
            return await handler(request)
        if not _has_token(request, token):
            raise _bad_token()
        response = await handler(request)
        if _brings_token(request, token) and not response.prepared:
            response.set_cookie(COOKIE, _in_cookie(token), httponly=True, samesite="Strict", path="/")
        return response

    return check


def _check_host(request: web.Request, settings: ServerSettings) -> None:
    """Refuse a foreign name for a server that only this machine reaches: it was pointed here to read answers.

    Elsewhere the token guards: the name under which the server is reached is not known here.
    """
    if not settings.is_loopback:
        return
    given = request.headers.getall("Host", [])
    host = _split_host(given[0]) if len(given) == 1 else None
    if host is None or not is_loopback(host[0]):
        shown = ", ".join(given)[:60]
        message = f"found Host {shown!r}, accepted localhost or 127.0.0.1; open this server by one of these names"
        raise ApiError(403, message, "foreign_host")


def _check_origin(request: web.Request) -> None:
    """Refuse what another site makes a browser send, other than opening a page of this server."""
    headers = request.headers
    if request.method not in ("GET", "HEAD") or _is_upgrade(request):
        for origin in headers.getall("Origin", []):
            if not _is_same(origin, headers.get("Host", "")):
                raise _foreign(origin)
    if "cross-site" in headers.getall("Sec-Fetch-Site", []):
        opens_page = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
        if not (opens_page and _is_page(request)):
            raise _foreign(headers.get("Origin") or "another site")


def _is_upgrade(request: web.Request) -> bool:
    return "websocket" in request.headers.get("Upgrade", "").lower()


def _is_page(request: web.Request) -> bool:
    """Return whether a request may be that of a browser that opens a page, none of the API."""
    is_api = request.path == "/api" or request.path.startswith("/api/")
    return request.method == "GET" and not is_api and not _is_upgrade(request)


def _is_same(origin: str, host: str) -> bool:
    """Return whether an Origin is the server's own: same host and port, absent ports being the scheme's own."""
    scheme, separator, name = origin.partition("://")
    usual = {"http": 80, "https": 443}.get(scheme.lower())
    own, asked = _split_host(name), _split_host(host)
    if not separator or usual is None or own is None or asked is None:
        return False
    return (own[0], own[1] or usual) == (asked[0], asked[1] or usual)


def _split_host(host: str) -> tuple[str, int | None] | None:
    """Return name and port of a Host header, or None when it is none."""
    try:
        parts = urlsplit(f"//{host}")
        if parts.netloc != host or parts.hostname is None or parts.username is not None:
            return None
        return parts.hostname.lower(), parts.port
    except ValueError:
        return None


def _has_token(request: web.Request, token: str) -> bool:
    given = [_query_token(request)]
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        given.append(value.strip())
    elif scheme.lower() == "basic":
        given.append(_password(value.strip()))
    has_cookie = _is_equal(request.cookies.get(COOKIE, ""), _in_cookie(token))
    return has_cookie or any(_is_equal(item, token) for item in given)


def _in_cookie(token: str) -> str:
    """Return a token percent-encoded: a cookie cannot hold every character that a token may have."""
    return quote(token, "", errors=_ERRORS)


def _brings_token(request: web.Request, token: str) -> bool:
    """Return whether a browser opens a page with the token in its address; what the page loads has it not there."""
    dest = request.headers.get("Sec-Fetch-Dest")
    opens_page = request.path == "/" if dest is None else dest == "document"
    return opens_page and _is_page(request) and _is_equal(_query_token(request), token)


def _query_token(request: web.Request) -> str:
    return request.query.get("token", "") if request.method == "GET" else ""


def _is_equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors=_ERRORS), token.encode(errors=_ERRORS))


def _password(text: str) -> str:
    """Return the password of Basic credentials: clients made for other servers often know no other way."""
    try:
        return base64.b64decode(text, validate=True).decode(errors="surrogateescape").partition(":")[2]
    except (binascii.Error, ValueError):  # ValueError: letters beyond ASCII
        return ""


def _no_token() -> ApiError:
    message = (
        "found a request to an address beyond this machine while the server has no token; start it with --token T, "
        "and send that"
    )
    return ApiError(403, message, "no_token")


def _bad_token() -> ApiError:
    message = (
        "found no valid token, accepted the one that the server was started with; send it as `Authorization: Bearer T`"
    )
    return ApiError(401, message, "bad_token")


def _foreign(origin: str) -> ApiError:
    message = f"found a request from {origin[:60]!r}, accepted those of this server's own pages; open the page here"
    return ApiError(403, message, "foreign_origin")
