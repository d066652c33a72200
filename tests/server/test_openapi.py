"""The OpenAPI document against a real server: what it declares is what is answered, and nothing else."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from openapi_spec_validator import validate
from websockets.sync.client import connect

from app.server.app import make_app
from app.server.settings import ServerSettings
from tests.server.kit import Answer, Server, serving, template, text_document, wait_for
from tests.server.openapi_kit import Api

BROKEN_JSON = b"{"
TOO_LARGE = b'{"' + b" " * (64 << 20) + b'":0}'
"""One byte and more above what JSON bodies may have."""
MAX_UPLOAD = 100 << 20
NOT_A_MODEL = "damaged/model.onnx"
TOKEN = "correct horse"
MUST_FAIL_IN_EVERY_WAY = {"runs", "workflows", "live", "packages"}
"""Tags of which every declared 4xx is reached."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a damaged model and a damaged workflow in its folders."""
    data = tmp_path_factory.mktemp("openapi")
    models = data / "more"
    for path in (models / NOT_A_MODEL, data / "user" / "workflows" / "damaged.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no such thing")
    with serving(data, "--models", str(models)) as running:
        yield running


@pytest.fixture(scope="module")
def api(server: Server) -> Api:
    """The document that the server serves."""
    return Api(server.get("/api/openapi.json"))


@pytest.fixture(scope="module")
def handlers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    """Our own handlers by method and path, out of the router of an application."""

    async def made() -> web.Application:
        app = make_app(ServerSettings(tmp_path_factory.mktemp("router")))
        runner = web.AppRunner(app)  # it closes the database
        await runner.setup()
        await runner.cleanup()
        return app

    return {
        (route.method, route.resource.canonical): route.handler
        for route in asyncio.run(made()).router.routes()
        if route.handler.__module__.startswith("app.server.api.") and route.method != "HEAD" and route.resource
    }


def send(server: Server, api: Api, name: str, body: Any = None, /, headers: Any = None, **values: Any) -> Answer:
    """Send one request to an operation and judge its answer."""
    method, path = api.target(name, values)
    answer = server.call(method, path, body, headers)
    api.judge(name, answer)
    return answer


def test_document_is_valid(api: Api) -> None:
    """As the OpenAPI Initiative's own JSON Schema of 3.1 says, by openapi-spec-validator."""
    validate(api.document)
    assert api.document["openapi"].startswith("3.1.")
    names = [operation["operationId"] for _, _, operation in api.operations()]
    assert len(names) == len(set(names))


def test_paths_are_those_of_the_router(api: Api, handlers: dict[tuple[str, str], Any]) -> None:
    """In both directions: every route that a module below app/server/api has put into the application's router."""
    assert {(method, path) for method, path, _ in api.operations()} == set(handlers)


def test_summaries_are_the_handlers_first_sentences(api: Api, handlers: dict[tuple[str, str], Any]) -> None:
    """The words stand at the handlers; each operation has some."""
    for method, path, operation in api.operations():
        words = " ".join((handlers[method, path].__doc__ or "").split())
        assert operation["summary"]
        assert words.startswith(operation["summary"] + ".")


def test_statuses_in_docstrings_are_declared(api: Api, handlers: dict[tuple[str, str], Any]) -> None:
    """A docstring tells them as numbers of three digits, and the document may add those that all routes have."""
    for method, path, operation in api.operations():
        told = {int(status) for status in re.findall(r"\b[1-5]\d\d\b", handlers[method, path].__doc__)}
        assert told
        assert told <= api.declared(operation), (method, path)


def test_judge_finds_what_is_not_declared(server: Server, api: Api) -> None:
    """A key that the schema lacks, one that is gone, and one of another type, each in an answer that is good else."""
    state = server.get("/api/queue/state")
    schema = {"$ref": "#/components/schemas/QueueState"}
    api.check(schema, state)
    for wrong in ({**state, "more": 1}, {"running": 0, "queued": 0}, {**state, "paused": "no"}):
        with pytest.raises(AssertionError):
            api.check(schema, wrong)


def test_a_slash_in_a_name_may_be_encoded(server: Server, api: Api) -> None:
    """Clients made from the document write it as %2F in a part of a path."""
    assert send(server, api, "save_workflow", {"document": text_document(), "version": None}, name="a/b").status == 201
    assert server.get("/api/workflows/a%2Fb") == server.get("/api/workflows/a/b")


def test_importing_the_server_leaves_the_description_alone() -> None:
    """It is built when it is first asked for."""
    code = "import sys, app.server.app; print([m for m in sys.modules if 'openapi_' in m or m == 'yaml'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_example_is_answered_as_declared(server: Server, api: Api) -> None:
    """In the document's order each operation gets its examples as they are; ids come from answers, by its links."""
    ids: dict[str, Any] = {}
    names = [operation["operationId"] for _, _, operation in api.operations() if operation["operationId"] != "connect"]
    last = {"cancel_run": 0, "delete_run": 1, "end_live": 2, "rename_workflow": 3, "delete_workflow": 4}
    for name in sorted(names, key=lambda name: last.get(name, -1)):
        for body in api.bodies(name):
            answer = send(server, api, name, body, **ids)
            assert answer.status < 300, (name, answer.body)
            ids |= linked(api, name, answer)
    missing = {name for name in names if not any(seen == name and status < 300 for seen, status in api.seen)}
    assert not missing


def linked(api: Api, name: str, answer: Answer) -> dict[str, Any]:
    """Return the parameters that an answer's links give to other operations."""
    links = api.find(name)[2]["responses"].get(str(answer.status), {}).get("links", {})
    found = {}
    for link in links.values():
        for parameter, place in link["parameters"].items():
            found[parameter] = answer.json[place.removeprefix("$response.body#/")]
    return found


def test_runs_queued_and_running_are_as_declared(server: Server, api: Api) -> None:
    """Each state of a run has its own keys; no state has others."""
    slow = {"document": template("text-to-image", _9__steps=900)}
    running = send(server, api, "create_run", slow, wait="false").json["run"]
    wait_for(lambda: send(server, api, "get_run", run_id=running, wait="false").json.get("progress", {}).get("current"))
    queued = send(server, api, "create_run", {"document": text_document()}, wait="0.01")
    assert queued.status == 201
    assert queued.json["document"]
    assert send(server, api, "delete_run", run_id=running).status == 409
    listed = send(server, api, "list_runs", state=["queued", "running"], node_type="", text="", order="newest").json
    assert {run["state"] for run in listed["runs"]} == {"queued", "running"}
    assert send(server, api, "cancel_run", run_id=running).json == {"cancelled": True}
    ended = send(server, api, "get_run", run_id=queued.json["run"], wait="true").json
    assert ended["state"] == "done"
    assert send(server, api, "cancel_run", run_id=running).json == {"cancelled": False}


def test_failed_run_is_as_declared(server: Server, api: Api) -> None:
    """A formula that divides by zero fails while it runs."""
    nodes = {
        "1": {"class_type": "MathExpression", "inputs": {"expression": "1 / a", "a": 0}},
        "2": {"class_type": "ShowValue", "inputs": {"value": ["1", "float"]}},
    }
    run = send(server, api, "create_run", {"document": {"version": 1, "nodes": nodes}}).json
    assert run["state"] == "failed"
    assert run["problems"][0]["node"] == "1"


def test_live_session_is_as_declared_until_it_is_kept(server: Server, api: Api) -> None:
    """Waiting, running, steered or settled: no state has keys that the document lacks."""
    document = template("text-to-image", _9__steps=40)
    opened = send(server, api, "open_live", {"document": document, "settle_ms": 50}).json["live_id"]
    states = set()
    for cfg in (2.0, 2.5, 3.5):
        states.add(send(server, api, "get_live", live_id=opened).json["state"])
        assert send(server, api, "change_live", {"set": {"Denoise.cfg": cfg}}, live_id=opened).status == 200

    def kept() -> bool:
        session = send(server, api, "get_live", live_id=opened).json
        states.add(session["state"])
        return bool(session.get("shown", {}).get("kept")) and session["shown"]["revision"] == 4

    wait_for(kept)
    assert {"running", "settled"} <= states
    send(server, api, "list_live")
    assert send(server, api, "end_live", live_id=opened).status == 204


def test_every_node_type_and_its_ports_are_as_declared(server: Server, api: Api) -> None:
    """Of all bundled types."""
    for node_type in send(server, api, "list_node_types").json["node_types"]:
        assert send(server, api, "get_node_type", name=node_type["name"]).json == node_type


def test_versions_of_a_workflow(server: Server, api: Api) -> None:
    """New 201, changed 200, other than expected 409 with the version that is there."""
    body = {"document": text_document(), "version": None}
    assert send(server, api, "save_workflow", body, name="versions").status == 201
    version = send(server, api, "read_workflow", name="versions").json["version"]
    changed = {"document": text_document("other"), "version": version}
    assert send(server, api, "save_workflow", changed, name="versions").status == 200
    conflict = send(server, api, "save_workflow", changed, name="versions")
    assert conflict.status == 409
    assert conflict.json["version"] != version


def test_socket_opens_and_refuses_as_declared(server: Server, api: Api) -> None:
    """101 for an upgrade, as RFC 6455 has it; 400 for a client id that is too long."""
    with connect(server.url.replace("http", "ws") + "/api/events?client_id=openapi") as socket:
        assert socket.response is not None
        assert socket.response.status_code in api.declared(api.find("connect")[2])
        assert json.loads(socket.recv())["events"][0]["type"] == "hello"
    assert send(server, api, "connect", client_id="x" * 201).status == 400
    assert send(server, api, "connect", after="-1").status == 400


FAILURES: list[tuple[str, int, Any, dict[str, Any]]] = [
    ("create_run", 422, {}, {}),
    ("create_run", 422, {"document": {"nodes": {"1": {"class_type": "NoSuch"}}}}, {}),
    ("create_run", 400, {"document": text_document()}, {"wait": "soon"}),
    ("list_runs", 400, None, {"limit": 0}),
    ("list_runs", 400, None, {"limit": 1_001}),
    ("list_runs", 400, None, {"order": "best"}),
    ("list_runs", 400, None, {"state": ["gone"]}),
    ("get_run", 404, None, {"run_id": "none"}),
    ("delete_run", 404, None, {"run_id": "none"}),
    ("cancel_run", 404, None, {"run_id": "none"}),
    ("retry_run", 404, {}, {"run_id": "none"}),
    ("run_workflow", 404, {}, {"name": "none"}),
    ("run_workflow", 422, {"set": {"Denoise.cfg": "high"}}, {"name": "text-to-image"}),
    ("run_workflow", 403, {}, {"name": "../none"}),
    ("save_workflow", 400, {"document": text_document()}, {"name": "aux"}),
    ("save_workflow", 422, {"document": []}, {}),
    ("read_workflow", 404, None, {"name": "none"}),
    ("read_workflow", 400, None, {"name": "aux"}),
    ("read_workflow", 422, None, {"name": "damaged"}),
    ("delete_workflow", 404, None, {"name": "none"}),
    ("delete_workflow", 400, None, {"name": "aux"}),
    ("delete_workflow", 409, None, {"name": "damaged", "version": "0" * 20}),
    ("delete_workflow", 428, None, {"name": "damaged", "version": None}),
    ("duplicate_workflow", 404, {"to": "b"}, {"name": "none"}),
    ("duplicate_workflow", 400, {}, {"name": "damaged"}),
    ("duplicate_workflow", 409, {"to": "damaged"}, {"name": "damaged"}),
    ("rename_workflow", 404, {"to": "b"}, {"name": "none"}),
    ("rename_workflow", 400, {}, {"name": "damaged"}),
    ("rename_workflow", 409, {"to": "b", "version": "0" * 20}, {"name": "damaged"}),
    ("import_workflow", 422, {"nodes": 1}, {}),
    ("read_template", 404, None, {"name": "none"}),
    ("model_signature", 400, None, {"model": ""}),
    ("model_signature", 404, None, {"model": "none.onnx"}),
    ("model_signature", 422, None, {"model": NOT_A_MODEL}),
    ("list_missing", 422, {}, {}),
    ("get_node_type", 404, None, {"name": "NoSuch"}),
    ("get_ports", 404, {}, {"name": "NoSuch"}),
    ("get_ports", 422, {"inputs": []}, {}),
    ("get_ports", 422, {"inputs": {"model": "none.onnx"}}, {}),
    ("open_live", 422, {}, {}),
    ("open_live", 422, {"document": text_document(), "settle_ms": -1}, {}),
    ("get_live", 404, None, {"live_id": "none"}),
    ("change_live", 404, {"set": {"1.text": ""}}, {"live_id": "none"}),
    ("replace_live", 404, {}, {"live_id": "none"}),
    ("end_live", 404, None, {"live_id": "none"}),
]
"""Operation, status, body, parameters; each with the sentence of the handler's docstring about that status."""


@pytest.mark.parametrize(("name", "status", "body", "values"), FAILURES)
def test_failures_are_as_declared(
    server: Server, api: Api, name: str, status: int, body: Any, values: dict[str, Any]
) -> None:
    """The status that the handler's docstring names, and the body of all errors."""
    answer = send(server, api, name, body, **values)
    assert answer.status == status, answer.body
    assert answer.json["errors"][0]["message"]


def test_failures_of_what_is_there(server: Server, api: Api) -> None:
    """A run, a session and a workflow stay as they were when a change is refused."""
    run = send(server, api, "create_run", {"document": text_document()}).json["run"]
    assert send(server, api, "retry_run", {"set": {"9.text": ""}}, run_id=run).status == 422
    assert send(server, api, "get_run", run_id=run, wait="later").status == 400
    session = send(server, api, "open_live", {"document": text_document()}).json["live_id"]
    assert send(server, api, "change_live", {"set": {"9.text": ""}}, live_id=session).status == 422
    assert send(server, api, "replace_live", {"document": {"nodes": []}}, live_id=session).status == 422
    for body, name in ((BROKEN_JSON, "change_live"), (BROKEN_JSON, "replace_live")):
        assert send(server, api, name, body, live_id=session).status == 400
    for name in ("change_live", "replace_live"):
        assert send(server, api, name, TOO_LARGE, live_id=session).status == 413
    assert send(server, api, "retry_run", BROKEN_JSON, run_id=run).status == 400
    assert send(server, api, "retry_run", TOO_LARGE, run_id=run).status == 413
    assert send(server, api, "get_live", live_id=session).json["revision"] == 1


def test_too_many_sessions_are_refused(server: Server, api: Api) -> None:
    """64 are accepted."""
    opened = []
    try:
        for _ in range(65):
            answer = send(server, api, "open_live", {"document": text_document()})
            if answer.status == 429:
                break
            opened.append(answer.json["live_id"])
        assert answer.status == 429
        assert len(opened) <= 64
    finally:
        for live_id in opened:
            send(server, api, "end_live", live_id=live_id)


def test_bodies_that_are_broken_or_too_large(server: Server, api: Api) -> None:
    """400 and 413 wherever a body is taken; the file of an import may be larger than JSON."""
    ids = {"run_id": "none", "live_id": "none"}
    for _, _, operation in api.operations():
        name = operation["operationId"]
        if "requestBody" not in operation or "id}" in api.find(name)[1]:
            continue
        if name == "import_workflow":
            form = {"Content-Type": "multipart/form-data"}
            assert send(server, api, name, b"no boundary", headers=form).status == 400
            assert send(server, api, name, b" " * (MAX_UPLOAD + 1)).status == 413
        else:
            assert send(server, api, name, BROKEN_JSON, **ids).status == 400, name
            assert send(server, api, name, TOO_LARGE, **ids).status == 413, name


def test_foreign_hosts_are_refused_everywhere(server: Server, api: Api) -> None:
    """403 for every operation, under a name that a page of another site may have pointed here."""
    for _, _, operation in api.operations():
        values = {"run_id": "none", "live_id": "none"}
        answer = send(server, api, operation["operationId"], None, headers={"Host": "evil.example"}, **values)
        assert answer.status == 403


def test_token_is_asked_for_everywhere_but_for_health(tmp_path: Path, api: Api) -> None:
    """401 without it; every scheme that the document names opens the door."""
    values = {"run_id": "none", "live_id": "none"}
    with serving(tmp_path, "--token", TOKEN) as guarded:
        for _, _, operation in api.operations():
            answer = send(guarded, api, operation["operationId"], None, **values)
            assert answer.status == (200 if operation.get("security") == [] else 401)
        schemes = api.document["components"]["securitySchemes"]
        for name, scheme in schemes.items():
            headers, query = credentials(scheme)
            assert guarded.call("GET", f"/api/queue/state{query}", headers=headers).status == 200, name


def credentials(scheme: dict[str, Any]) -> tuple[dict[str, str], str]:
    """Return the headers and the query that a security scheme asks for."""
    if scheme["type"] == "http":
        value = TOKEN if scheme["scheme"] == "bearer" else base64.b64encode(f"any:{TOKEN}".encode()).decode()
        return {"Authorization": f"{scheme['scheme'].title()} {value}"}, ""
    if scheme["in"] == "cookie":
        return {"Cookie": f"{scheme['name']}={quote(TOKEN)}"}, ""
    return {}, f"?{scheme['name']}={quote(TOKEN)}"


def test_every_declared_failure_was_reached(api: Api, request: pytest.FixtureRequest) -> None:
    """Run last: what the tests above have seen is all that runs, workflows, live sessions and packages declare."""
    collected = {item.name.partition("[")[0] for item in request.session.items}
    if not {name for name in globals() if name.startswith("test_")} <= collected:
        pytest.skip("it judges what all tests of this file have seen")
    missed = {
        (operation["operationId"], status)
        for _, _, operation in api.operations()
        if set(operation["tags"]) & MUST_FAIL_IN_EVERY_WAY
        for status in api.declared(operation)
        if 400 <= status < 500
    } - api.seen
    assert not missed
