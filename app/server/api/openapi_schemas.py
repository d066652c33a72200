"""What our own API takes and gives, as JSON Schema (2020-12): the components of the OpenAPI document."""

from __future__ import annotations

from app.server.api.json_schema import (
    Schema,
    anything,
    body,
    by_name,
    flag,
    listed,
    number,
    one_of,
    or_null,
    record,
    ref,
    text,
    whole,
)
from app.server.api.runs import STATES
from app.server.live_session import MAX_SETTLE_MS, SETTLE_MS

SECONDS = number("Seconds", minimum=0)
TIME = number("Seconds since 1970 (UTC)", minimum=0)
VERSION = text("A hash of the saved file's bytes", pattern="^[0-9a-f]{20}$")
SETTINGS = by_name(
    anything("The new value"),
    "New values of inputs by NODE.INPUT, NODE an id or a title, e.g. `Denoise.cfg`; inputs that are wired stay so",
)

_PROBLEMS: dict[str, Schema] = {
    "Problem": record(
        {
            "message": text("The whole sentence for people: what was found, what is accepted, what to do", minLength=1),
            "code": text("What kind of problem it is, for programs", minLength=1),
            "node": text("Id of the node; empty when it concerns the whole"),
            "title": text("Title of the node"),
            "input": text("Name of the input, or of the key in the body"),
        }
    ),
    "Errors": record({"errors": {**listed(ref("Problem")), "minItems": 1}}, meaning="Everything that is wrong"),
    "Conflict": record(
        {"errors": {**listed(ref("Problem")), "minItems": 1}},
        {"version": or_null(VERSION)},
        "version: the one that is there now, null when there is none; left out when a file or folder is in the way",
    ),
}

_DOCUMENTS: dict[str, Schema] = {
    "Node": body(
        {
            "class_type": text("A name of GET /api/node_types", minLength=1),
            "inputs": by_name(
                anything('A value; a wire as [node id, output name or slot]; {"__value__": X} for what looks like one')
            ),
            "_meta": body({"title": text("How people call it")}),
        },
        ("class_type",),
    ),
    "Workflow": body(
        {"version": whole("Version of the format", 1, 1), "nodes": by_name(ref("Node"), "By node id")},
        ("nodes",),
        "A workflow as Ortloom saves it. Keys that are not known are kept",
    ),
    "ApiPrompt": {
        **by_name({"type": "object"}, "ComfyUI's API format: nodes by id, bare or under `prompt`"),
        "minProperties": 1,
        "not": {"required": ["nodes"]},
    },
    "Document": {"anyOf": [ref("Workflow"), ref("ApiPrompt")]},
}

_SUMMARY: dict[str, Schema] = {
    "run": text("Its id", minLength=1),
    "number": whole("Counts all runs, from 1", 1),
    "state": one_of(*STATES),
    "source": one_of("comfy", "api", "live", "workflow", meaning="How it was asked for"),
    "name": text("Name of its workflow, as far as one was given"),
    "client_id": or_null(text("Whose event stream hears of it")),
    "priority": number("Lower ones go first"),
    "created": TIME,
    "started": or_null(TIME),
    "ended": or_null(TIME),
    "seconds": number("How long the worker took", minimum=0),
    "outputs": listed(ref("Output")),
    "problems": listed(ref("Problem"), "Why it failed"),
}
_WHOLE: dict[str, Schema] = {
    "document": ref("Document"),
    "targets": or_null(listed(text(), "Ids of the output nodes asked for; null for all")),
    "node_types": listed(text(), "Names of the node types in the document"),
    "seconds_by_node": by_name(SECONDS),
    "step_seconds_by_loop": by_name(listed(SECONDS), "Seconds of each step, by node id of the loop"),
    "cached": listed(text(), "Ids of nodes whose results came from the cache"),
    "session_loads": whole("Models loaded for it"),
    "session_hits": whole("Models that were loaded already"),
}
_RUNNING = {"progress": ref("Progress")}

_RUNS: dict[str, Schema] = {
    "Output": record(
        {"node": text("Id of the node"), "type": text("image, text, value, preview or an extension's own word")},
        {
            "folder": one_of("output", "temp", "", meaning="Where its file lies: GET /view?type=FOLDER serves it"),
            "path": text("The file's path in that folder, with / between"),
            "value": anything("What is no file"),
            "step": whole("The loop's step that it shows"),
        },
    ),
    "Progress": record(
        {
            "current": or_null(text("Id of the node that runs now")),
            "nodes": by_name(
                record(
                    {"state": one_of("running", "finished", "cached")},
                    {"step": whole(), "steps": whole("0 when not known"), "seconds": SECONDS},
                )
            ),
        },
        meaning="How far a run in hand is",
    ),
    "RunSummary": record(_SUMMARY, _RUNNING),
    "Run": record({**_SUMMARY, **_WHOLE}, _RUNNING),
    "RunList": record({"runs": listed(ref("RunSummary")), "total": whole("How many there are besides this page")}),
    "QueueState": record({"running": whole(), "queued": whole(), "paused": flag()}),
    "Loop": record(
        {
            "header": text("Id of the loop node"),
            "parent": or_null(text("Header of the loop around it")),
            "body": listed(text(), "Ids of all nodes that run on every pass, inner loops' included, in order"),
            "taps": listed(text(), "Those of them that feed nothing back, inner loops by their header"),
            "feedback": listed(text(), "Inputs of the header that are wired from the body"),
        }
    ),
}

_RUN_OPTIONS: dict[str, Schema] = {
    "set": SETTINGS,
    "targets": or_null(listed(text(), "Ids of the output nodes to run; all when null")),
    "front": flag("Go before all that wait", default=False),
    "client_id": or_null(text("Whose event stream is to hear of it")),
    "name": text("A name for the history"),
}
_REQUESTS: dict[str, Schema] = {
    "DocumentRequest": body({"document": ref("Document")}, ("document",)),
    "RunOptions": body(_RUN_OPTIONS),
    "RunRequest": body({"document": ref("Document"), **_RUN_OPTIONS}, ("document",)),
    "LiveRequest": body(
        {
            "document": ref("Document"),
            "set": SETTINGS,
            "client_id": _RUN_OPTIONS["client_id"],
            "name": _RUN_OPTIONS["name"],
            "settle": flag("Run what was steered once more, so that the result can be made again", default=True),
            "settle_ms": whole("How long no change must have come before that", 0, MAX_SETTLE_MS, default=SETTLE_MS),
            "preview_every": whole("A preview at most every so many steps", 1, 10_000, default=1),
            "preview_px": whole("Longest side of a preview; 0 for none", 0, 16_384, default=512),
        },
        ("document",),
    ),
    "Changes": body({"set": {**SETTINGS, "minProperties": 1}}, ("set",)),
    "ReplaceRequest": {"anyOf": [ref("DocumentRequest"), ref("Document")]},
    "PortsRequest": body({"inputs": by_name(anything("A value"), "Values of inputs by name, wires left out")}),
    "SaveRequest": body(
        {
            "document": ref("Workflow"),
            "version": or_null(text('The version that it replaces; null for a new name, "*" for whatever is there')),
        },
        ("document",),
    ),
    "CopyRequest": body({"to": text("The new name", minLength=1)}, ("to",)),
    "RenameRequest": body(
        {
            "to": text("The new name", minLength=1),
            "version": or_null(text('The version to rename; "*" for any', default="*")),
        },
        ("to",),
    ),
}

_LIVE_STATE: dict[str, Schema] = {
    "live_id": text(minLength=1),
    "revision": whole("Counts changes, from 1", 1),
    "state": one_of("waiting", "running", "settling", "failed", "steered", "settled"),
    "running_revision": or_null(whole("", 1)),
    "waiting_revision": or_null(whole("", 1)),
    "problems": listed(ref("Problem"), "Why the newest revision failed"),
    "session_loads": whole("Models loaded since the session opened"),
    "session_hits": whole("Models found loaded since the session opened"),
}
_LIVE_EXTRAS: dict[str, Schema] = {
    "shown": ref("Shown"),
    "note": text("Why models were loaded after the first revision"),
}
_LIVE: dict[str, Schema] = {
    "Shown": record(
        {
            "revision": whole("", 1),
            "settled": flag("A fresh run with the same values gives the same"),
            "kept": flag("It is in the history, under `run`"),
            "run": text(minLength=1),
            "seconds": SECONDS,
            "outputs": listed(ref("Output")),
        },
        meaning="The newest result",
    ),
    "LiveState": record(_LIVE_STATE, _LIVE_EXTRAS),
    "LiveSession": record({**_LIVE_STATE, "document": ref("Workflow")}, _LIVE_EXTRAS),
    "Revision": record({"revision": whole("", 1)}),
}

_STORED: dict[str, Schema] = {
    "WorkflowEntry": record(
        {
            "name": text("Its path below the folder, with / between and without .json", minLength=1),
            "bytes": whole(),
            "modified": TIME,
            "title": or_null(text()),
            "node_count": or_null(whole("null when unknown")),
            "error": or_null(text("Why the file is no workflow")),
        }
    ),
    "SavedWorkflow": record(
        {"name": text(minLength=1), "version": VERSION, "document": by_name({}, "As it is stored")}
    ),
    "SavedVersion": record({"name": text(minLength=1), "version": VERSION}),
    "TemplateEntry": record(
        {"name": text(minLength=1), "title": text(), "note": text("What it shows"), "bytes": whole()}
    ),
    "Template": record({"name": text(minLength=1), "document": ref("Workflow")}),
}

_FILE = record({"name": text("Its path in the model folder, with / between"), "bytes": whole(), "modified": TIME})
_NAMED = {"node": text("Id of the node"), "input": text("Name of the input"), "name": text("The missing file")}
_SHAPE = listed({"type": ["integer", "string", "null"]}, "A number, a symbol, or null for each dimension")
_PACKAGES: dict[str, Schema] = {
    "PackageFile": _FILE,
    "Package": record(
        {
            "name": text("Its folder's path in the model folder; . for the model folder itself"),
            "folder": text("Which of the model folders it lies in"),
            "models": listed(ref("PackageFile")),
            "files": listed(ref("PackageFile"), "Configurations, tokenizers and weights beside the models"),
        }
    ),
    "ModelPort": record(
        {
            "name": text(),
            "dtype": text("numpy's name, or sequence, optional, map or sparse"),
            "shape": or_null(_SHAPE),
            "has_default": flag("It need not be fed"),
        }
    ),
    "ModelSignature": record(
        {
            "inputs": listed(ref("ModelPort")),
            "outputs": listed(ref("ModelPort")),
            "proposed_state": listed(
                record({"input": text(), "output": text(), "init": text()}),
                "Outputs that seem to feed inputs of the next step, judged by their names",
            ),
            "opsets": by_name(whole()),
            "ir_version": whole(),
            "producer": text(),
            "metadata": by_name(text()),
            "weight_bytes": whole(),
            "ops": by_name(whole("How often", 1), "Operators, the most frequent first"),
        }
    ),
    "Missing": record(
        {
            "models": listed(record(_NAMED)),
            "files": listed(record({**_NAMED, "kind": one_of("tokenizer", "image")})),
            "node_types": listed(record({"node": text(), "class_type": text(), "sentence": text()})),
        }
    ),
}

_TYPED: dict[str, Schema] = {
    "type": text(
        "INT, FLOAT, BOOLEAN, STRING, TENSOR, IMAGE, MASK, SAMPLER, LIST, * or an extension's own", minLength=1
    )
}
_TENSOR: dict[str, Schema] = {"dtypes": listed(text(), "numpy's names"), "shape": _SHAPE, "group": text()}
_PORTS = {"inputs": listed(ref("InputPort")), "outputs": listed(ref("OutputPort"))}
_NODES: dict[str, Schema] = {
    "InputPort": record(
        {
            "name": text(minLength=1),
            **_TYPED,
            "help": text(),
            "required": flag(),
            "role": one_of("input", "feedback", "steerable", meaning="Read once, at each step's end, or at each step"),
            "pair": one_of("lift", "accept", "refuse", meaning="What a guidance pair does here"),
        },
        {
            **_TENSOR,
            "default": anything("Taken when nothing is given"),
            "minimum": number(),
            "maximum": number(),
            "step": number("What an editor changes it by"),
            "choices": listed({"type": ["string", "number", "boolean"]}),
            "cfg": text("Name of the input that holds the guidance scale of the pair that arrives here"),
            "widget": text("How an editor draws it"),
            "literal_only": flag("It shapes the node and cannot be wired"),
        },
    ),
    "OutputPort": record(
        {"name": text(minLength=1), **_TYPED, "help": text(), "per_step": flag("Given anew at each step")}, _TENSOR
    ),
    "Ports": record(_PORTS),
    "NodeType": record(
        {
            "name": text("class_type in documents", minLength=1),
            "display_name": text(minLength=1),
            "category": text(),
            "help": text(),
            "version": whole("Raised when the same inputs may give other outputs", 1),
            "source": text("The module that it comes from"),
            "output_node": flag("It shows or stores something"),
            "is_loop": flag(),
            "has_dynamic_ports": flag("POST /api/node_types/NAME/ports tells them for given values"),
            "search_aliases": listed(text()),
            **_PORTS,
        }
    ),
    "Extension": record({"name": text(), "node_types": listed(text()), "error": text("Why it was skipped")}),
}

SCHEMAS: dict[str, Schema] = {
    **_PROBLEMS, **_DOCUMENTS, **_RUNS, **_REQUESTS, **_LIVE, **_STORED, **_PACKAGES, **_NODES,
}  # fmt: skip
"""By the name that `ref` takes."""
