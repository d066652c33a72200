"""Hostile input against a real server: never a 5xx, a hang, or a file outside of its folder."""

from __future__ import annotations

import copy
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.kit import Server, serving, template

SECRET = b"nobody outside may read this"
SLOWEST_S = 10.0
"""No answer may take longer, on a machine that may be busy; a usual one takes milliseconds."""

MANY = settings(max_examples=700, deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(slots=True)
class Target:
    """A paused server with a secret beside its data folder, spoken to over one connection."""

    server: Server
    root: Path
    connection: http.client.HTTPConnection

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Return status and body; a server that closed the connection is asked once more."""
        began = monotonic()
        for attempt in (1, 2):
            try:
                self.connection.request(method, path, body, headers)
                answer = self.connection.getresponse()
                data = answer.read()
                break
            except (http.client.HTTPException, ConnectionError):
                self.connection.close()
                assert attempt == 1, f"{method} {path[:200]!r} ends the connection"
        assert monotonic() - began < SLOWEST_S
        assert answer.status < 500, (method, path[:300], body and body[:300], data[:300])
        assert SECRET not in data
        return answer.status, data

    def check_outside(self) -> None:
        """The folder around the data folder holds what it held, and the server lives."""
        assert {path.name for path in self.root.iterdir()} == {"data", "secret.txt", "secret"}
        assert (self.root / "secret.txt").read_bytes() == SECRET
        assert [path.name for path in (self.root / "secret").iterdir()] == ["inner.txt"]
        assert self.server.process.poll() is None


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A paused server: what is accepted waits and is thrown away."""
    root = tmp_path_factory.mktemp("hostile")
    (root / "secret.txt").write_bytes(SECRET)
    (root / "secret").mkdir()
    (root / "secret" / "inner.txt").write_bytes(SECRET)
    with serving(root / "data", "--paused") as server:
        (root / "data" / "input" / "link.png").symlink_to(root / "secret.txt")
        (root / "data" / "input" / "folder").symlink_to(root / "secret", target_is_directory=True)
        yield Target(server, root, http.client.HTTPConnection("127.0.0.1", server.port, timeout=60))
        server.post("/api/queue/clear")


texts = st.text(max_size=20) | st.sampled_from(("", "1", "9", "sampler", "\x00", "\ud800", "nan", "__proto__"))
numbers = st.integers() | st.floats() | st.sampled_from((10**400, -1, 2**63, 1e308))
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(
    (
        "../secret.txt",
        "..\\secret.txt",
        "%2e%2e/secret.txt",
        "..%2fsecret.txt",
        "/etc/passwd",
        "C:\\secret.txt",
        "//host/share",
        "link.png",
        "folder/inner.txt",
        "a/../../secret.txt",
        "....//secret.txt",
        "CON",
        "aux.txt",
        "a\x00.png",
        "a.png ",
        ".",
        "..",
        "",
        "~/x",
        "a" * 300,
        "\ud800.png",
        "ü/..",
        "secret.txt [input]",
        "../secret.txt [temp]",
    )
) | st.text(max_size=30)


def encoded(data: Any) -> bytes:
    """Return JSON as a careless client sends it: with NaN, and halves of surrogate pairs."""
    return json.dumps(data).encode()


def check_answer(status: int, data: bytes) -> None:
    """An answer of /prompt is an id, or errors in ComfyUI's shape or ours."""
    told = json.loads(data)
    if status == 200:
        assert set(told) == {"prompt_id", "number", "node_errors"}
    else:
        assert status == 400
        assert "errors" in told or set(told) == {"error", "node_errors"}
        assert "error" not in told or set(told["error"]) == {"type", "message", "details", "extra_info"}


@MANY
@given(
    st.fixed_dictionaries(
        {"prompt": values},
        optional={
            "client_id": values,
            "prompt_id": values,
            "number": values,
            "front": values,
            "extra_data": values,
            "partial_execution_targets": values,
        },
    )
    | values
)
def test_prompts_of_any_json(target: Target, body: Any) -> None:
    check_answer(*target.ask("POST", "/prompt", encoded(body)))


@MANY
@given(st.data())
def test_prompts_that_are_damaged_workflows(target: Target, data: st.DataObject) -> None:
    """Up to four places of a template that works are replaced, removed, or wired elsewhere."""
    nodes = copy.deepcopy(
        template(data.draw(st.sampled_from(("text-to-image", "two-prompts", "masked-diffusion"))))["nodes"]
    )
    for _ in range(data.draw(st.integers(1, 4))):
        node = data.draw(st.sampled_from(sorted(nodes)))
        link = st.tuples(st.sampled_from(sorted(nodes)) | texts, st.integers(-3, 12) | texts).map(list)
        damage = data.draw(st.sampled_from(("value", "link", "drop", "type", "node", "inputs", "mode")))
        inputs = nodes[node].get("inputs") if isinstance(nodes[node], dict) else None
        if damage in ("value", "link", "drop") and isinstance(inputs, dict) and inputs:
            name = data.draw(st.sampled_from(sorted(inputs)) | texts)
            if damage == "drop":
                inputs.pop(name, None)
            else:
                inputs[name] = data.draw(values if damage == "value" else link)
        elif damage == "type" and isinstance(nodes[node], dict):
            nodes[node]["class_type"] = data.draw(st.sampled_from(("DenoiseLoop", "Text", "RepeatLoop")) | values)
        elif damage == "inputs" and isinstance(nodes[node], dict):
            nodes[node]["inputs"] = data.draw(values)
        elif damage == "mode" and isinstance(nodes[node], dict):
            nodes[node]["mode"] = data.draw(st.sampled_from(("mute", "bypass")) | values)
        elif damage == "node":
            nodes[node] = data.draw(values)
    check_answer(*target.ask("POST", "/prompt", encoded({"prompt": nodes})))


@settings(MANY, max_examples=200)
@given(st.binary(max_size=60))
def test_bodies_of_any_bytes(target: Target, body: bytes) -> None:
    for path in ("/prompt", "/api/runs", "/queue", "/history", "/interrupt", "/free", "/settings", "/api/live"):
        status, _ = target.ask("POST", path, body)
        assert status in (200, 400, 422)


@settings(MANY, max_examples=400)
@given(names, names, st.sampled_from(("input", "output", "temp", "", "other", "../input")), st.booleans())
def test_names_of_files_to_read(target: Target, name: str, subfolder: str, kind: str, as_preview: bool) -> None:
    query = f"filename={escaped(name)}&subfolder={escaped(subfolder)}&type={escaped(kind)}"
    target.ask("GET", f"/view?{query}{'&preview=webp' if as_preview else ''}")
    target.ask("GET", f"/userdata/{escaped(name)}")
    target.ask("GET", f"/userdata?dir={escaped(subfolder)}&recurse=true")
    target.ask("GET", f"/api/workflows/{escaped(name)}")
    target.ask("GET", f"/api/packages/signature?model={escaped(name)}")
    target.ask("GET", f"/models/{escaped(name)}")


@settings(MANY, max_examples=300)
@given(names, names, st.sampled_from(("input", "output", "temp", "", "../data")), st.sampled_from(("true", "", "x")))
def test_names_of_files_to_write(target: Target, name: str, subfolder: str, kind: str, overwrite: str) -> None:
    fields = {"subfolder": subfolder, "type": kind, "overwrite": overwrite, "original_ref": encoded_ref(name)}
    for path in ("/upload/image", "/upload/mask"):
        target.ask("POST", path, form(name, fields), **{"Content-Type": "multipart/form-data; boundary=xx"})
    target.ask("POST", f"/userdata/{escaped(name)}", b"mine")
    target.ask("POST", f"/userdata/{escaped(subfolder)}/move/{escaped(name)}", b"")
    target.ask("DELETE", f"/userdata/{escaped(name)}")
    body = encoded({"document": {"version": 1, "nodes": {}}, "version": "*"})
    target.ask("PUT", f"/api/workflows/{escaped(name)}", body)
    target.ask("POST", f"/api/workflows/{escaped(subfolder)}/rename", encoded({"to": name}))
    target.check_outside()


def test_nothing_outside_was_touched_and_the_server_answers(target: Target) -> None:
    """Runs last in this file: all of the above went to the same server."""
    target.check_outside()
    assert target.ask("GET", "/health")[0] == 200
    log = (target.root / "data" / "logs" / "server.log").read_text()
    assert "Traceback" not in log


def escaped(text: str) -> str:
    """Return a text as a URL holds it; halves of surrogate pairs as the bytes that some clients send."""
    return quote(text.encode("utf-8", "surrogatepass"), safe="%./\\~")


def encoded_ref(name: str) -> str:
    """Return a reference to an original picture."""
    return json.dumps({"filename": name, "type": "input"})


def form(name: str, fields: dict[str, str]) -> bytes:
    """Return a multipart form with a file, its name as it is."""
    quoted = name.replace('"', "%22").replace("\r", "").replace("\n", "")
    parts = [f'--xx\r\nContent-Disposition: form-data; name="image"; filename="{quoted}"\r\n\r\nhello\r\n']
    parts += [
        f'--xx\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n' for key, value in fields.items()
    ]
    return "".join((*parts, "--xx--\r\n")).encode("utf-8", "surrogatepass")
