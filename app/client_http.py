"""HTTP requests of the Python client, and the one error that it raises."""

from __future__ import annotations

import base64
import json
import os
import socket
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from app.graph.errors import Problem

if TYPE_CHECKING:
    import aiohttp

CONNECT_S = 10.0
SILENCE_S = 120.0
"""How long an answer may pause before the server counts as lost; requests that wait for a run are not made."""

_FIELDS = ("node", "title", "input", "message", "code")


class ClientError(Exception):
    """A request that the server refused, or that never reached one.

    problems: what the server said, at least one. status: of its HTTP answer, None when there was none.
    """

    def __init__(self, problems: Iterable[Problem], status: int | None = None) -> None:
        self.problems = tuple(problems)
        self.status = status
        super().__init__("\n".join(map(str, self.problems)))

    @classmethod
    def of(cls, message: str, code: str = "invalid", status: int | None = None) -> ClientError:
        """Return an error with a single problem."""
        return cls([Problem(message, code)], status)

    @property
    def may_pass(self) -> bool:
        """Whether the same request may do later: nothing answered, or something in front of a server that is away."""
        return self.status in (502, 503, 504) or self.problems[0].code == "no_connection"


class Address:
    """Where a server is and what it wants to see. url: without a slash at the end and without the token."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """Take the token from the address, as `ortloom serve` prints it, when none is given. Raises ClientError."""
        try:
            parts = urlsplit(url.strip())
            has_port = parts.port is None or parts.port > 0
        except ValueError:
            has_port = False
        if not has_port or parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            accepted = "an address such as http://127.0.0.1:8188"
            raise ClientError.of(f"found server {url[:80]!r}, accepted {accepted}; write it so", "bad_url")
        token = token or parse_qs(parts.query).get("token", [None])[0]
        if token is not None and not (token.isprintable() and token == token.strip()):
            raise ClientError.of("found a token with spaces at an end or control characters; check it", "bad_token")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.headers = {} if token is None else {"Authorization": _credentials(token)}

    @property
    def socket_url(self) -> str:
        """The same address for WebSockets."""
        return "ws" + self.url.removeprefix("http")

    def unreachable(self, reason: str) -> ClientError:
        """Return the error of a connection that cannot be made, or that broke."""
        accepted = "a running Ortloom server; start it with `ortloom serve`, or check the address"
        return ClientError.of(f"found no server at {self.url} ({reason}), accepted {accepted}", "no_connection")

    def refusal(self, status: int, body: bytes, asked: str) -> ClientError:
        """Return the error that an HTTP answer tells of."""
        problems = _problems(body)
        if not problems:
            message = f"found status {status} for {asked} at {self.url}; check that an Ortloom server answers there"
            problems = [Problem(message, f"http_{status}")]
        return ClientError(problems, status)


class Http:
    """Requests to one server over kept connections. No proxy is used: the server is one's own."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._session: aiohttp.ClientSession | None = None

    async def json(self, method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None) -> Any:
        """Return an answer's JSON, None without one; `body` goes as JSON unless it is a form. Raises ClientError."""
        data = await self.bytes(method, path, body, query)
        if not data:
            return None
        try:
            return json.loads(data)
        except ValueError:
            raise self.address.refusal(200, b"", f"{method} {path}") from None

    async def bytes(self, method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None) -> bytes:
        """Return the body of an answer. Raises ClientError."""
        import aiohttp

        session = self._opened()
        is_form = isinstance(body, aiohttp.FormData)
        try:
            sent = {"data": body} if is_form else {} if body is None else {"json": body}
            async with session.request(method, self.address.url + path, params=query, **sent) as answer:
                data = await answer.read()
                if answer.status >= 300:
                    raise self.address.refusal(answer.status, data, f"{method} {path}")
                return data
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise self.address.unreachable(reason_of(error)) from error

    async def close(self) -> None:
        """End all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
            self._session = aiohttp.ClientSession(
                headers=self.address.headers, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session


def _credentials(token: str) -> str:
    """Return the header that shows a token; libraries encode what is not ASCII in different ways, so it is hidden."""
    if token.isascii():
        return f"Bearer {token}"
    return f"Basic {base64.b64encode(f'ortloom:{token}'.encode()).decode()}"


def reason_of(error: BaseException) -> str:
    """Return in a few words why a connection failed."""
    inner = getattr(error, "os_error", error)
    if isinstance(inner, TimeoutError):
        return "it does not answer in time"
    text = str(inner) or type(inner).__name__
    if isinstance(inner, OSError) and inner.errno is not None:
        # asyncio writes addresses into strerror; the codes of failed name look-ups are not those of the system.
        text = (inner.strerror if isinstance(inner, socket.gaierror) else os.strerror(inner.errno)) or text
    return " ".join(text.split())


def _problems(body: bytes) -> list[Problem]:
    try:
        return [problem_of(error) for error in json.loads(body)["errors"]]
    except (ValueError, LookupError, TypeError, AttributeError):
        return []


def problem_of(data: Mapping[str, Any]) -> Problem:
    """Return a problem as a server writes it."""
    return Problem(**{name: str(data.get(name) or "") for name in _FIELDS})
