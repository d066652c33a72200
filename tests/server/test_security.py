"""Who is let in: the matrix of Host, Origin and token, against a real server.

Expected values: RFC 6454 (an origin is scheme, host and port), RFC 6750 and RFC 7617 (credentials), W3C Fetch Metadata.
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from app.server.app import make_app
from app.server.errors import answer_errors
from app.server.keys import SETTINGS
from app.server.security import COOKIE, HEADERS, add_headers, guard
from app.server.settings import ServerSettings

HERE, EVERYWHERE = "127.0.0.1", "0.0.0.0"
TOKEN = 't:ö%41;"\\ €\U0001f427'
EVIL = "http://evil.example"


async def say(request: web.Request) -> web.StreamResponse:
    """Stand for any route; answer a WebSocket handshake where one is asked for."""
    if request.headers.get("Upgrade") == "websocket":
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.close()
        return socket
    return web.json_response({"path": request.path})


async def fail(request: web.Request) -> web.StreamResponse:
    """Stand for a route with a defect."""
    raise ZeroDivisionError


def served_app(settings: ServerSettings) -> web.Application:
    """Return an application that is guarded as the real one is and answers every route."""
    app = web.Application(middlewares=[answer_errors, guard(settings)])
    app.on_response_prepare.append(add_headers)
    app[SETTINGS] = settings
    app.router.add_get("/fail", fail)
    app.router.add_get("/only-get", say)
    app.router.add_static("/files", settings.data)
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        app.router.add_route(method, "/{anything:(?!fail|only-get|files|missing).*}", say)
    return app


def ask(
    tmp_path: Path,
    headers: dict[str, str],
    path: str = "/queue",
    method: str = "GET",
    host: str = HERE,
    token: str | None = None,
    **more: Any,
) -> tuple[int, Any, Any]:
    """Return status, headers and JSON (None without) of one request to a server bound to `host`, told `token`."""

    async def act() -> tuple[int, Any, Any]:
        app = served_app(ServerSettings(tmp_path, host=host, token=token))
        async with (
            TestClient(TestServer(app)) as client,
            client.request(method, URL(path, encoded=True), headers=headers, allow_redirects=False, **more) as reply,
        ):
            is_json = reply.content_type == "application/json" and method != "HEAD"
            return reply.status, reply.headers.copy(), await reply.json() if is_json else None

    return asyncio.run(act())


def status(tmp_path: Path, headers: dict[str, str], **more: Any) -> int:
    """Return the status of one request; a refusal must say what is wrong in the one body of errors."""
    code, _, body = ask(tmp_path, headers, **more)
    if code >= 400 and more.get("method") != "HEAD":
        (error,) = body["errors"]
        assert "found" in error["message"]
        assert "accepted" in error["message"] or "start it with" in error["message"]
    return code


def socket_headers(**more: str) -> dict[str, str]:
    """Return a WebSocket handshake."""
    key = base64.b64encode(bytes(16)).decode()
    fixed = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key}
    return fixed | more


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", 200),
        ("LOCALHOST:8188", 200),
        ("127.0.0.1", 200),
        ("127.8.9.10:1", 200),
        ("[::1]", 200),
        ("[::1]:8188", 200),
        ("evil.example", 403),
        ("evil.example:8188", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.nip.io", 403),
        ("127.0.0.1@evil.example", 403),
        ("evil.example@127.0.0.1", 403),
        ("127.0.0.1/evil.example", 403),
        ("localhost#evil.example", 403),
        ("localhost?evil.example", 403),
        ("localhost:evil", 403),
        ("localhost:99999", 403),
        ("[::1", 403),
        ("[fe80::1]", 403),
        ("0.0.0.0:8188", 403),
        ("192.168.1.5:8188", 403),
        ("", 403),
    ],
)
def test_a_server_of_this_machine_answers_to_loopback_names_only(tmp_path: Path, host: str, expected: int) -> None:
    """127.0.0.0/8 and ::1 are loopback (RFC 1122, RFC 4291), localhost by RFC 6761; a name that merely resolves here
    is what DNS rebinding uses. /health is no exception."""
    assert status(tmp_path, {"Host": host}) == expected
    assert status(tmp_path, {"Host": host}, path="/health") == expected
    assert status(tmp_path, {"Host": host, "Authorization": "Bearer t"}, token="t") == expected


def test_a_request_with_two_hosts_is_refused(tmp_path: Path) -> None:
    """RFC 9112, section 3.2: a request with more than one Host is invalid."""

    async def act() -> bytes:
        async with TestServer(served_app(ServerSettings(tmp_path))) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /queue HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
            first = await reader.readline()
            writer.close()
            return first

    assert asyncio.run(act()).split()[1] in (b"400", b"403")


@pytest.mark.parametrize("host", ["evil.example", "192.168.1.5:8188", "gpu.lan"])
def test_beyond_this_machine_any_host_is_taken_because_the_token_guards(tmp_path: Path, host: str) -> None:
    """The names under which a server is reached from elsewhere are not known to it."""
    headers = {"Host": host, "Authorization": "Bearer t"}
    assert status(tmp_path, headers, host=EVERYWHERE, token="t") == 200
    assert status(tmp_path, {"Host": host}, host=EVERYWHERE, token="t") == 401


@pytest.mark.parametrize("token", [None, ""])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_beyond_this_machine_nothing_but_health_is_answered_without_a_token(
    tmp_path: Path, method: str, token: str | None
) -> None:
    """An empty token counts as none: nobody can tell `--token "$UNSET"` from forgetting it."""
    for path in ("/", "/queue", "/api/queue", "/health/", "/healthy", "/api/health", "/x//health", "/missing"):
        headers = {"Authorization": "Bearer ", "Cookie": f"{COOKIE}="}
        assert status(tmp_path, headers, path=path, method=method, host=EVERYWHERE, token=token) == 403, path
    assert status(tmp_path, {}, path="/health", method=method, host=EVERYWHERE, token=token) == 200


def test_every_route_of_the_server_asks_for_the_token(tmp_path: Path) -> None:
    """Each route of the real application, by its own path and method: 403 with no token set, 401 with none sent."""
    routes = [
        (route.method, route.resource.canonical.replace("{", "").replace("}", ""))
        for route in make_app(ServerSettings(tmp_path)).router.routes()
        if route.resource is not None
    ]
    assert len(routes) > 60

    async def act(token: str | None) -> set[int]:
        app = served_app(ServerSettings(tmp_path, host=EVERYWHERE, token=token))
        found = set()
        async with TestClient(TestServer(app)) as client:
            for method, path in routes:
                if path != "/health":
                    async with client.request(method if method != "*" else "GET", path) as reply:
                        found.add(reply.status)
        return found

    assert asyncio.run(act(None)) == {403}
    assert asyncio.run(act("t")) == {401}


def basic(login: bytes, password: bytes) -> str:
    """Return Basic credentials (RFC 7617)."""
    return "Basic " + base64.b64encode(login + b":" + password).decode()


BASIC = basic(b"anyone", TOKEN.encode())
QUERY = str(URL.build(path="/queue", query={"token": TOKEN}))


@pytest.mark.parametrize("host", [HERE, EVERYWHERE])
@pytest.mark.parametrize(
    ("headers", "path", "method", "expected"),
    [
        ({}, "/queue", "GET", 401),
        ({}, "/missing", "GET", 401),
        ({}, "/health", "GET", 200),
        ({"Authorization": f"Bearer {TOKEN}"}, "/queue", "GET", 200),
        ({"Authorization": f"bearer   {TOKEN}"}, "/queue", "POST", 200),
        ({"Authorization": f"Bearer {TOKEN}x"}, "/queue", "GET", 401),
        ({"Authorization": f"Bearer {TOKEN[:-1]}"}, "/queue", "GET", 401),
        ({"Authorization": TOKEN}, "/queue", "GET", 401),
        ({"Authorization": "Bearer"}, "/queue", "GET", 401),
        ({"Authorization": BASIC}, "/queue", "GET", 200),
        ({"Authorization": BASIC}, "/queue", "DELETE", 200),
        ({"Authorization": basic(b"t", b"wrong")}, "/queue", "GET", 401),
        ({"Authorization": "Basic !!!"}, "/queue", "GET", 401),
        ({"Authorization": "Basic ü"}, "/queue", "GET", 401),
        ({"Authorization": basic(b"a", b"\xff")}, "/queue", "GET", 401),
        ({"Authorization": b"Bearer \xff".decode(errors="surrogateescape")}, "/queue", "GET", 401),
        ({}, QUERY, "GET", 200),
        (socket_headers(), QUERY, "GET", 101),
        (socket_headers(), "/ws", "GET", 401),
        ({}, QUERY, "POST", 401),
        ({}, QUERY, "DELETE", 401),
        ({}, "/queue?token=", "GET", 401),
        ({}, "/queue?token=%FF%ED%A0%80", "GET", 401),
        ({"Cookie": f"{COOKIE}=%FF"}, "/queue", "GET", 401),
        ({"Cookie": f"{COOKIE}="}, "/queue", "GET", 401),
    ],
)
def test_a_token_opens_every_route(
    tmp_path: Path, host: str, headers: dict[str, str], path: str, method: str, expected: int
) -> None:
    """As a Bearer token, as the password of Basic credentials, in the query of a GET or a WebSocket; nothing less."""
    raw = {name: value.encode(errors="surrogateescape") for name, value in headers.items()}
    named = {name: value.decode("utf-8", "surrogateescape") for name, value in raw.items()}
    code, answered, _ = ask(tmp_path, named, path, method, host, TOKEN)
    assert code == expected
    assert answered.get("WWW-Authenticate") == ("Bearer" if expected == 401 else None)


def test_a_page_opened_with_the_token_leaves_a_cookie_for_what_it_loads(tmp_path: Path) -> None:
    """The cookie is out of reach of scripts and of other sites, and good for every method."""

    async def act() -> None:
        app = served_app(ServerSettings(tmp_path, token=TOKEN))
        async with TestClient(TestServer(app)) as client:
            async with client.get("/", params={"token": TOKEN}) as reply:
                assert reply.status == 200
                text = reply.headers["Set-Cookie"]
            pair, *flags = text.split("; ")
            assert {flag.lower() for flag in flags} == {"httponly", "samesite=strict", "path=/"}
            client.session.cookie_jar.clear()
            for method in ("GET", "POST", "DELETE"):
                async with client.request(method, "/queue", headers={"Cookie": pair}) as reply:
                    assert reply.status == 200
                async with client.request(method, "/queue", headers={"Cookie": pair[:-1]}) as reply:
                    assert reply.status == 401

    asyncio.run(act())


@pytest.mark.parametrize(
    ("path", "headers", "has_cookie"),
    [
        ("/?token=t", {"Sec-Fetch-Dest": "document"}, True),
        ("/runs/5?token=t", {"Sec-Fetch-Dest": "document"}, True),
        ("/?token=t", {"Sec-Fetch-Dest": "empty"}, False),
        ("/api/queue?token=t", {"Sec-Fetch-Dest": "document"}, False),
        ("/queue?token=t", {}, False),
        ("/?token=wrong", {"Authorization": "Bearer t"}, False),
        ("/", {"Authorization": "Bearer t"}, False),
    ],
)
def test_only_pages_get_the_cookie(tmp_path: Path, path: str, headers: dict[str, str], has_cookie: bool) -> None:
    """A client that sends the token by itself needs none, and one that sends a wrong one must not be given it."""
    code, answered, _ = ask(tmp_path, headers, path, token="t")
    assert code == 200
    assert ("Set-Cookie" in answered) is has_cookie


SAME = [
    ("localhost:8188", "http://localhost:8188"),
    ("localhost", "http://localhost"),
    ("localhost", "http://localhost:80"),
    ("localhost:80", "http://localhost"),
    ("localhost", "https://localhost:443"),
    ("localhost:443", "https://localhost"),
    ("LocalHost:8188", "http://localhost:8188"),
    ("[::1]:8188", "http://[::1]:8188"),
]
FOREIGN = [
    ("localhost:8188", EVIL),
    ("localhost:8188", f"{EVIL}:8188"),
    ("localhost:8188", "http://localhost:3000"),
    ("localhost:8188", "http://localhost"),
    ("localhost", "http://localhost:443"),
    ("localhost:8188", "http://127.0.0.1:8188"),
    ("localhost:8188", "http://localhost.evil.example:8188"),
    ("localhost:8188", "http://evil.example@localhost:8188"),
    ("localhost:8188", "http://localhost:8188/"),
    ("localhost:8188", "http://localhost:8188#"),
    ("localhost:8188", "http://localhost:x"),
    ("localhost:8188", "localhost:8188"),
    ("localhost:8188", "file://localhost:8188"),
    ("localhost:8188", "chrome-extension://abcdefgh"),
    ("localhost:8188", "http://[::1"),
    ("localhost:8188", "null"),
    ("localhost:8188", ""),
]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize(
    ("host", "origin", "expected"), [(*pair, 200) for pair in SAME] + [(*pair, 403) for pair in FOREIGN]
)
def test_what_changes_something_must_come_from_a_page_of_this_server(
    tmp_path: Path, host: str, origin: str, expected: int, method: str
) -> None:
    """An origin is scheme, host and port (RFC 6454); `null` is anybody's. A token does not help another site's page."""
    headers = {"Host": host, "Origin": origin}
    assert status(tmp_path, headers, method=method) == expected
    headers["Authorization"] = "Bearer t"
    assert status(tmp_path, headers, method=method, token="t") == expected


@pytest.mark.parametrize(
    ("host", "origin", "expected"), [(*pair, 101) for pair in SAME] + [(*pair, 403) for pair in FOREIGN]
)
def test_a_socket_must_be_opened_by_a_page_of_this_server(
    tmp_path: Path, host: str, origin: str, expected: int
) -> None:
    """Browsers let every page open WebSockets to anywhere; the server has to look at Origin (RFC 6455, 10.2)."""
    assert ask(tmp_path, socket_headers(Host=host, Origin=origin), "/ws")[0] == expected


def test_clients_that_are_no_browsers_send_no_origin(tmp_path: Path) -> None:
    """Neither Origin nor Fetch Metadata: let in, by every method and as a WebSocket."""
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert status(tmp_path, {}, method=method) == 200
    assert ask(tmp_path, socket_headers(), "/ws")[0] == 101


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/runs/5", "/api", "/api/queue", "/apiary"])
@pytest.mark.parametrize("mode", ["navigate", "no-cors", "cors", "websocket", None])
@pytest.mark.parametrize("dest", ["document", "iframe", "image", None])
def test_from_another_site_only_a_page_can_be_opened(
    tmp_path: Path, method: str, path: str, mode: str | None, dest: str | None
) -> None:
    """W3C Fetch Metadata: a followed link is mode navigate and dest document; frames and pictures are others."""
    given = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
    headers = {name: value for name, value in given.items() if value is not None}
    is_link = (method, mode, dest) == ("GET", "navigate", "document") and path in ("/", "/runs/5", "/apiary")
    assert status(tmp_path, headers, path=path, method=method) == (200 if is_link else 403)


def test_from_another_site_no_socket_is_opened(tmp_path: Path) -> None:
    """Not even one that pretends to be a followed link."""
    site = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert ask(tmp_path, socket_headers(**site), "/ws")[0] == 403


@pytest.mark.parametrize("site", ["same-origin", "same-site", "none"])
def test_other_values_of_fetch_metadata_are_let_through(tmp_path: Path, site: str) -> None:
    """`none` is an address typed in; `same-site` is another port of localhost: its changes are caught by Origin."""
    assert status(tmp_path, {"Sec-Fetch-Site": site}) == 200
    foreign = {"Sec-Fetch-Site": site, "Host": "localhost:8188", "Origin": "http://localhost:3000"}
    assert status(tmp_path, foreign, method="POST") == 403


@pytest.mark.parametrize(
    ("path", "method", "more", "expected"),
    [
        ("/", "GET", {}, 200),
        ("/ws", "GET", socket_headers(), 101),
        ("/files/a.txt", "GET", {}, 200),
        ("/files/a.txt", "GET", {"Range": "bytes=0-1"}, 206),
        ("/missing", "GET", {}, 404),
        ("/only-get", "POST", {}, 405),
        ("/queue", "POST", {"Origin": EVIL}, 403),
        ("/queue", "OPTIONS", {"Origin": EVIL, "Access-Control-Request-Method": "POST"}, 403),
        ("/queue", "GET", {"Origin": EVIL}, 200),
        ("/queue", "GET", {"Host": "evil.example"}, 403),
        ("/queue", "POST", {"Expect": "a miracle"}, 417),
        ("/fail", "GET", {}, 500),
    ],
)
def test_every_answer_is_passive_and_shares_nothing(
    tmp_path: Path, path: str, method: str, more: dict[str, str], expected: int
) -> None:
    """Errors, sockets and files too; no Access-Control header invites another site, whatever it asks for."""
    (tmp_path / "a.txt").write_text("hello")
    code, headers, _ = ask(tmp_path, more, path, method)
    assert code == expected
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert [name for name in headers if name.lower().startswith("access-control-")] == []


def test_a_route_may_set_a_policy_of_its_own(tmp_path: Path) -> None:
    """A file that must not even load pictures keeps its stricter policy."""

    async def strict(request: web.Request) -> web.Response:
        return web.Response(headers={"Content-Security-Policy": "sandbox"})

    async def act() -> str:
        app = web.Application()
        app.on_response_prepare.append(add_headers)
        app.router.add_get("/", strict)
        async with TestClient(TestServer(app)) as client, client.get("/") as reply:
            return reply.headers["Content-Security-Policy"]

    assert asyncio.run(act()) == "sandbox"
