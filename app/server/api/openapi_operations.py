"""The operations of our own API for the OpenAPI document; their summaries stand at the handlers."""

from __future__ import annotations

from app.server.api.events import MAX_CLIENT_ID
from app.server.api.json_schema import anything, flag, listed, one_of, record, ref, text, whole
from app.server.api.openapi_parts import JSON, Answers, Operation, answer, error, in_path, operation, query, sent
from app.server.api.runs import MAX_PAGE, ORDERS, STATES
from app.server.run_requests import MAX_WAIT_S

DOCUMENT = {
    "version": 1,
    "nodes": {
        "1": {"class_type": "Text", "inputs": {"text": "hello"}, "_meta": {"title": "Greeting"}},
        "2": {"class_type": "ShowText", "inputs": {"text": ["1", "text"]}},
    },
}
PROMPT = DOCUMENT["nodes"]
SAVED_NAME = "greetings/hello"

EVENTS = """A WebSocket: the request must ask for the upgrade.

Texts from the server are `{"seq": number of the last event, "events": [...]}`. The first event is `hello` with
`client_id`, `stream` and `after`. A client that comes again with its `client_id`, that `stream` and `after` = the last
`seq` that it has seen hears what it missed; where that is kept no more, `hello` says `"too_old": true`.

Events: `queue`; of runs, each with `run`: `started`, `cached`, `node_started`, `node_finished`, `step_finished`,
`output`, `steered`, `restarted`, and at the end `done`, `failed` or `cancelled`; of live sessions `live.state` (as
LiveState) and `live.closed`. Events of a live session's runs hold `live_id` and `revision` too.

Binary frames are previews: 4 bytes of header length (big endian), a JSON header of type `preview`, the picture.

Texts from the client are one object with a `type`, and a `ref` that comes back with the answer:
`subscribe` or `unsubscribe` with `run`, `live_id` or `"all": true`; `live.open` with a LiveRequest's keys; `live.set`
with `live_id` and `set`; `live.replace` with `live_id` and `document`; `live.close` with `live_id`. Answers are of type
`reply`, or `error` with `errors`."""

WAIT = query(
    "wait",
    {"anyOf": [one_of("true", "false"), {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_WAIT_S}]},
    f"Answer when the run has ended, or after so many seconds; true: {MAX_WAIT_S:.0f}. The run is then told whole",
    example="true",
)
RUN_ID = in_path("run_id", "A run's `run`")
LIVE_ID = in_path("live_id", "A session's `live_id`")
MODEL = "emoji-diffusion/unet/model.onnx"
NAME = in_path("name", "A saved workflow's name; a / in it may stand as it is", example=SAVED_NAME)
NODE_TYPE = in_path("name", "A node type's name", example="DenoiseLoop")
IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "description": 'The version expected, as ETag told it; "*" for any. It goes before a version told otherwise',
    "schema": text(),
}
ETAG = {"ETag": {"description": "The version, in quotes", "schema": text()}}
_RUN_LINKS = {
    name: {"operationId": name, "parameters": {"run_id": "$response.body#/run"}}
    for name in ("get_run", "retry_run", "cancel_run", "delete_run")
}
_LIVE_LINKS = {
    name: {"operationId": name, "parameters": {"live_id": "$response.body#/live_id"}}
    for name in ("get_live", "change_live", "replace_live", "end_live")
}
QUEUED: Answers = {
    200: answer("The run, which has ended", ref("Run"), links=_RUN_LINKS),
    201: answer(
        "The run, which is queued or still runs; whole when `wait` was given",
        {"anyOf": [ref("RunSummary"), ref("Run")]},
        links=_RUN_LINKS,
    ),
}
_STATE: Answers = {200: answer("The queue's state", ref("QueueState"))}


def _version(status: int, meaning: str) -> Answers:
    return {status: answer(meaning, ref("SavedVersion"), headers=ETAG)}


_CONFLICT = {409: error(409, "Conflict")}

_RUNS: dict[tuple[str, str], Operation] = {
    ("POST", "/api/runs"): operation(
        "runs",
        "create_run",
        QUEUED,
        (422,),
        (WAIT,),
        sent(
            "RunRequest",
            small={"document": DOCUMENT, "set": {"Greeting.text": "good day"}},
            comfy={"document": PROMPT, "targets": ["2"]},
        ),
    ),
    ("GET", "/api/runs"): operation(
        "runs",
        "list_runs",
        {200: answer("One page of runs", ref("RunList"))},
        (400,),
        (
            query("text", text(), "Words to look for in names and documents", example="day"),
            query("node_type", text(), "Only runs with a node of this type", example="ShowText"),
            query(
                "state",
                listed(one_of(*STATES)),
                "Only runs in one of these states",
                style="form",
                explode=False,
                example=["done", "failed"],
            ),
            query("order", one_of(*ORDERS), "Newest first when left out", example="longest"),
            query("limit", whole("", 1, MAX_PAGE, default=100), "How many at most", example=10),
            query("offset", whole("", 0, 2**53, default=0), "How many to pass over", example=0),
        ),
    ),
    ("GET", "/api/runs/{run_id}"): operation(
        "runs", "get_run", {200: answer("The run", ref("Run"))}, (400, 404), (RUN_ID, WAIT)
    ),
    ("POST", "/api/runs/{run_id}/retry"): operation(
        "runs",
        "retry_run",
        QUEUED,
        (404, 422),
        (RUN_ID, WAIT),
        sent("RunOptions", required=False, changed={"set": {"1.text": "good night"}}),
    ),
    ("POST", "/api/runs/{run_id}/cancel"): operation(
        "runs",
        "cancel_run",
        {200: answer("Whether it was ended by this", record({"cancelled": flag("false when it had ended")}))},
        (404,),
        (RUN_ID,),
    ),
    ("DELETE", "/api/runs/{run_id}"): operation(
        "runs", "delete_run", {204: answer("It is forgotten")}, (404, 409), (RUN_ID,)
    ),
    ("POST", "/api/check"): operation(
        "runs",
        "check_document",
        {
            200: answer(
                "What is wrong, if anything", record({"errors": listed(ref("Problem")), "loops": listed(ref("Loop"))})
            )
        },
        (),
        (),
        sent("RunRequest", small={"document": DOCUMENT}),
    ),
    ("GET", "/api/queue/state"): operation("queue", "queue_state", _STATE),
    ("POST", "/api/queue/pause"): operation("queue", "pause_queue", _STATE),
    ("POST", "/api/queue/resume"): operation("queue", "resume_queue", _STATE),
    ("POST", "/api/queue/clear"): operation(
        "queue", "clear_queue", {200: answer("How many were taken out", record({"deleted": whole()}))}
    ),
}

_WORKFLOWS: dict[tuple[str, str], Operation] = {
    ("GET", "/api/workflows"): operation(
        "workflows",
        "list_workflows",
        {
            200: answer(
                "All of them",
                record({"workflows": listed(ref("WorkflowEntry")), "is_cut": flag("There are more than are listed")}),
            )
        },
    ),
    ("PUT", "/api/workflows/{name}"): operation(
        "workflows",
        "save_workflow",
        _version(200, "It has replaced the version before") | _version(201, "It is new") | _CONFLICT,
        (422, 507),
        (NAME, IF_MATCH),
        sent("SaveRequest", new={"document": DOCUMENT, "version": None}, any={"document": DOCUMENT, "version": "*"}),
    ),
    ("GET", "/api/workflows/{name}"): operation(
        "workflows",
        "read_workflow",
        {200: answer("The document as it is stored, and its version", ref("SavedWorkflow"), headers=ETAG)},
        (400, 404, 422),
        (NAME,),
    ),
    ("POST", "/api/workflows/{name}/run"): operation(
        "workflows",
        "run_workflow",
        QUEUED,
        (404, 422),
        ({**NAME, "description": "The name of a saved workflow or a template", "example": "text-to-image"}, WAIT),
        sent("RunOptions", required=False, changed={"set": {"Prompt.text": "red apple", "Denoise.steps": 4}}),
    ),
    ("POST", "/api/workflows/{name}/duplicate"): operation(
        "workflows",
        "duplicate_workflow",
        _version(201, "The copy") | _CONFLICT,
        (404, 507),
        (NAME,),
        sent("CopyRequest", copy={"to": "greetings/copy"}),
    ),
    ("POST", "/api/workflows/{name}/rename"): operation(
        "workflows",
        "rename_workflow",
        _version(200, "It has the new name") | _CONFLICT,
        (404, 507),
        ({**NAME, "example": "greetings/copy"}, IF_MATCH),
        sent("RenameRequest", other={"to": "greetings/other"}),
    ),
    ("DELETE", "/api/workflows/{name}"): operation(
        "workflows",
        "delete_workflow",
        {204: answer("It is deleted"), **_CONFLICT},
        (400, 404, 428, 507),
        (NAME, query("version", text(), 'The version to delete, "*" for any', example="*"), IF_MATCH),
    ),
    ("POST", "/api/workflows/import"): operation(
        "workflows",
        "import_workflow",
        {200: answer("The document in the file", record({"document": ref("Workflow")}))},
        (422,),
        (),
        {
            "required": True,
            "content": {
                JSON: {"schema": ref("Document"), "examples": {"comfy": {"value": PROMPT}}},
                "image/png": {"schema": anything("A picture that Ortloom or ComfyUI has saved")},
                "multipart/form-data": {"schema": {"type": "object", "properties": {"file": anything("The file")}}},
            },
        },
    ),
    ("GET", "/api/templates"): operation(
        "workflows",
        "list_templates",
        {200: answer("All of them", record({"templates": listed(ref("TemplateEntry"))}))},
    ),
    ("GET", "/api/templates/{name}"): operation(
        "workflows",
        "read_template",
        {200: answer("The document", ref("Template"))},
        (404,),
        (in_path("name", "A template's name", example="text-to-image"),),
    ),
}

_MODELS: dict[tuple[str, str], Operation] = {
    ("GET", "/api/packages"): operation(
        "packages",
        "list_packages",
        {
            200: answer(
                "Folders with models",
                record({"packages": listed(ref("Package")), "is_cut": flag("There are more than are looked at")}),
            )
        },
    ),
    ("GET", "/api/packages/signature"): operation(
        "packages",
        "model_signature",
        {200: answer("What the model takes and gives", ref("ModelSignature"))},
        (400, 404, 422),
        (query("model", text(minLength=1), "A model's name in GET /api/packages", required=True, example=MODEL),),
    ),
    ("POST", "/api/packages/missing"): operation(
        "packages",
        "list_missing",
        {200: answer("Empty lists when nothing is missing", ref("Missing"))},
        (422,),
        (),
        sent("DocumentRequest", small={"document": DOCUMENT}),
    ),
    ("GET", "/api/node_types"): operation(
        "nodes",
        "list_node_types",
        {
            200: answer(
                "All of them",
                record({"node_types": listed(ref("NodeType")), "extensions": listed(ref("Extension"))}),
            )
        },
    ),
    ("GET", "/api/node_types/{name}"): operation(
        "nodes", "get_node_type", {200: answer("Its schema", ref("NodeType"))}, (404,), (NODE_TYPE,)
    ),
    ("POST", "/api/node_types/{name}/ports"): operation(
        "nodes",
        "get_ports",
        {200: answer("Its ports with these values", ref("Ports"))},
        (404, 422),
        ({**NODE_TYPE, "example": "ONNXComponent"},),
        sent("PortsRequest", required=False, unet={"inputs": {"model": MODEL}}),
    ),
}

_SESSIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/api/live"): operation(
        "live",
        "open_live",
        {201: answer("The session's state", ref("LiveState"), links=_LIVE_LINKS)},
        (422, 429),
        (),
        sent("LiveRequest", template={"$ref": "#/components/examples/LiveTemplate"}),
    ),
    ("GET", "/api/live"): operation(
        "live", "list_live", {200: answer("All of them", record({"sessions": listed(ref("LiveState"))}))}
    ),
    ("GET", "/api/live/{live_id}"): operation(
        "live", "get_live", {200: answer("Its state", ref("LiveSession"))}, (404,), (LIVE_ID,)
    ),
    ("PATCH", "/api/live/{live_id}"): operation(
        "live",
        "change_live",
        {200: answer("The new revision", ref("Revision"))},
        (404, 422),
        (LIVE_ID,),
        sent("Changes", cfg={"set": {"Denoise.cfg": 3.5}}),
    ),
    ("PUT", "/api/live/{live_id}"): operation(
        "live",
        "replace_live",
        {200: answer("The new revision", ref("Revision"))},
        (404, 422),
        (LIVE_ID,),
        sent("ReplaceRequest", wrapped={"document": DOCUMENT}, bare=DOCUMENT),
    ),
    ("DELETE", "/api/live/{live_id}"): operation("live", "end_live", {204: answer("It has ended")}, (404,), (LIVE_ID,)),
}

_SERVER: dict[tuple[str, str], Operation] = {
    ("GET", "/api/events"): operation(
        "events",
        "connect",
        {101: answer("The WebSocket is open")},
        (400,),
        (
            query("client_id", text(maxLength=MAX_CLIENT_ID), "Whose events to hear; a new one when left out"),
            query("stream", text(), "`stream` of the last `hello`"),
            query("after", whole("", 0, 10**15 - 1), "`seq` of the last text seen"),
            query("subscribe", one_of("all"), "Hear of every run"),
        ),
        description=EVENTS,
    ),
    ("GET", "/health"): operation(
        "server",
        "health",
        {200: answer("It answers", record({"status": one_of("ok"), "version": text(minLength=1)}))},
        security=[],
    ),
    ("GET", "/metrics"): operation(
        "server",
        "metrics",
        {200: {"description": "Prometheus' text format 0.0.4", "content": {"text/plain": {"schema": text()}}}},
    ),
    ("GET", "/api/openapi.json"): operation(
        "server", "openapi", {200: answer("OpenAPI 3.1", {"type": "object", "required": ["openapi", "paths"]})}
    ),
}

OPERATIONS: dict[tuple[str, str], Operation] = {**_RUNS, **_WORKFLOWS, **_MODELS, **_SESSIONS, **_SERVER}
"""By method and path."""
