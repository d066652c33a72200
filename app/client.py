"""The Python client of an Ortloom server: submit, follow, cancel, fetch, and live sessions.

async with Client("http://127.0.0.1:8188") as client:
    run = await client.submit("text-to-image", set={"Denoise.cfg": 3})
    async for event in run.events():
        print(event)
    result = await run.result()
    picture = await client.fetch(result.outputs[0])
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

from app.client_handles import Handle, RunHandle, RunResult
from app.client_http import Address, ClientError, Http
from app.client_live import LiveHandle
from app.client_stream import Event, EventStream, Preview
from app.graph.document import Workflow

__all__ = ["Client", "ClientError", "Event", "LiveHandle", "Preview", "RunHandle", "RunResult"]

AnyHandle = TypeVar("AnyHandle", bound=Handle)


class Client:
    """A connection to one server, to be used with `async with`. Every method raises ClientError.

    It connects again by itself when the connection breaks, and no event is lost or given twice.
    """

    def __init__(self, url: str = "http://127.0.0.1:8188", token: str | None = None, reconnect_s: float = 60.0) -> None:
        """Take an address, and the token that the server was started with, which may also stand in the address.

        reconnect_s: how long the server may be away before everything that waits for it fails. Raises ClientError.
        """
        address = Address(url, token)
        self.url = address.url
        self._client_id = uuid.uuid4().hex
        self._http = Http(address)
        self._stream = EventStream(address, self._client_id, reconnect_s, self._take, self._recover, self._lose)
        self._handles: dict[str, Handle] = {}
        self._early: dict[str, Handle] = {}
        self._asking = 0

    async def __aenter__(self) -> Client:
        """Connect."""
        await self._stream.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End live sessions that are open, and disconnect; runs go on."""
        await self.close()

    async def close(self) -> None:
        """End live sessions that are open, and disconnect; runs go on."""
        for handle in tuple(self._handles.values()):
            if isinstance(handle, LiveHandle) and not handle.is_ended:
                with contextlib.suppress(ClientError):
                    await handle.close()
        await self._stream.close()
        self._lose(ClientError.of(f"found the client of {self.url} closed; keep it open while something is awaited"))
        await self._http.close()

    async def submit(
        self,
        workflow: Mapping[str, Any] | Workflow | str,
        *,
        set: Mapping[str, Any] | None = None,
        targets: Iterable[str] | None = None,
        front: bool = False,
        name: str = "",
    ) -> RunHandle:
        """Queue a run of a document, or of the workflow saved under a name, or of the template of that name.

        set: NODE.INPUT -> value, NODE an id or a title. targets: ids of the output nodes to run; None for all.
        front: before all that waits. name: what the history calls it; a saved workflow has its own.
        """
        body: dict[str, Any] = {"set": dict(set or {}), "front": front, "client_id": self._client_id}
        if targets is not None:
            body["targets"] = list(targets)
        if isinstance(workflow, str):
            path = f"/api/workflows/{quote(workflow)}/run"
        else:
            path = "/api/runs"
            body |= {"document": _document(workflow), "name": name}
        return await self._ask(path, body, "run", RunHandle)

    async def live(
        self,
        workflow: Mapping[str, Any] | Workflow | str,
        *,
        set: Mapping[str, Any] | None = None,
        name: str = "",
        **options: Any,
    ) -> LiveHandle:
        """Open a live session on a document, or a saved workflow or template by name, and run its first revision.

        options: settle (bool), settle_ms, preview_every (steps), preview_px.
        """
        if isinstance(workflow, str):
            name = name or workflow
            workflow = await self.workflow(workflow)
        body = {"document": _document(workflow), "set": dict(set or {}), "name": name, "client_id": self._client_id}
        handle = await self._ask("/api/live", {**options, **body}, "live_id", LiveHandle)
        handle.settles = options.get("settle", True)
        return handle

    async def workflow(self, name: str) -> dict[str, Any]:
        """Return the document of a saved workflow, or of the template of that name."""
        try:
            found = await self._http.json("GET", f"/api/workflows/{quote(name)}")
        except ClientError as error:
            if error.status != 404:
                raise
            found = await self._http.json("GET", f"/api/templates/{quote(name)}")
        document: dict[str, Any] = found["document"]
        return document

    async def fetch(self, output: Mapping[str, Any]) -> bytes:
        """Return the bytes of an output's file."""
        path = _path_of(output)
        query = {"filename": path.name, "type": str(output.get("folder", "output"))}
        if path.parent != PurePosixPath():
            query["subfolder"] = str(path.parent)
        return await self._http.bytes("GET", "/view", query=query)

    async def download(self, output: Mapping[str, Any], folder: Path) -> Path:
        """Write an output's file into a folder, under the server's name for it, and return its path.

        A file that is there stays, and the new one gets a number in parentheses. A name that leads out of the folder
        or that some system cannot store is refused.
        """
        path = await asyncio.to_thread(_inside, folder, str(_path_of(output)))
        data = await self.fetch(output)
        return await asyncio.to_thread(_write_new, path, data)

    async def missing(self, document: Mapping[str, Any] | Workflow) -> dict[str, list[dict[str, Any]]]:
        """Return what a document names and the server has not: `models`, `files` and `node_types`, a list each."""
        found: dict[str, list[dict[str, Any]]] = await self._http.json(
            "POST", "/api/packages/missing", {"document": _document(document)}
        )
        return found

    async def upload(self, path: Path, name: str) -> str:
        """Send an input file; return the name under which workflows find it, `name` unless that is taken."""
        import aiohttp

        place = PurePosixPath(name)
        if not name.isprintable() or not place.name:
            raise ClientError.of(f"found the name {name[:60]!r}, accepted a printable one; rename the file", "bad_name")
        form = aiohttp.FormData(quote_fields=False)  # servers do not undo percent signs in names
        try:
            data = await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ClientError.of(f"found {path}, which cannot be read ({reason}); choose another file") from error
        form.add_field("image", data, filename=place.name, content_type="application/octet-stream")
        form.add_field("type", "input")
        if place.parent != PurePosixPath():
            form.add_field("subfolder", str(place.parent))
        answer = await self._http.json("POST", "/upload/image", form)
        return str(PurePosixPath(answer.get("subfolder") or "", answer["name"]))

    async def _ask(self, path: str, body: Any, key: str, kind: type[AnyHandle]) -> AnyHandle:
        """Create something on the server; its events may come before the answer that says its id."""
        await self._stream.open()
        self._asking += 1
        try:
            id = str((await self._http.json("POST", path, body))[key])
            early = self._early.pop(id, None)
            handle = early if isinstance(early, kind) else kind(self._http, id)
            if not handle.is_ended:
                self._handles[id] = handle
            return handle
        finally:
            self._asking -= 1
            if not self._asking:
                self._early.clear()

    def _take(self, event: Event) -> None:
        header = event.header if isinstance(event, Preview) else event
        if header.get("type") == "removed":
            self._remove(header)
            return
        id = header.get("live_id") or header.get("run")
        if not isinstance(id, str):
            return
        handle = self._handles.get(id) or self._early.get(id)
        if handle is None and self._asking:
            kind = LiveHandle if header.get("live_id") else RunHandle
            handle = self._early[id] = kind(self._http, id)
        if handle is not None:
            handle.take(event)
            if handle.is_ended:
                self._handles.pop(id, None)

    def _remove(self, event: Mapping[str, Any]) -> None:
        """End runs that waited and were taken out of the queue."""
        for id in set(event["runs"]) & set(self._handles):
            handle = self._handles.pop(id)
            if event["state"] == "cancelled":
                counts = {"seconds": 0.0, "session_loads": 0, "session_hits": 0}
                handle.take({"type": "cancelled", "run": id, "outputs": [], "problems": [], **counts})
            else:
                message = f"found run {id} deleted from the queue by someone else; submit it again"
                handle.end(ClientError.of(message, "unknown_run", 404))

    async def _recover(self) -> None:
        for id, handle in list(self._handles.items()):
            await handle.recover()
            if handle.is_ended:
                self._handles.pop(id, None)

    def _lose(self, error: ClientError) -> None:
        for handle in self._handles.values():
            handle.end(error)
        self._handles.clear()


def _document(workflow: Mapping[str, Any] | Workflow) -> dict[str, Any]:
    return workflow.to_json() if isinstance(workflow, Workflow) else dict(workflow)


def _path_of(output: Mapping[str, Any]) -> PurePosixPath:
    path = output.get("path")
    if not isinstance(path, str) or not path:
        shown = str(dict(output))[:80]
        raise ClientError.of(f"found output {shown}, which has no file; read its `value`", "no_file")
    return PurePosixPath(path)


def _inside(folder: Path, name: str) -> Path:
    from app.server.client_paths import inside
    from app.server.errors import ApiError

    try:
        return inside(folder, name)
    except ApiError as error:
        message = f"the server names a file that cannot be written here: {error.problem.message}"
        raise ClientError.of(message, error.problem.code) from None


def _write_new(path: Path, data: bytes) -> Path:
    """Write a file that was not there, beside one that was; return its path. Raises ClientError."""
    number, free = 0, path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                with free.open("xb") as file:
                    file.write(data)
            except FileExistsError:
                number += 1
                free = path.with_name(f"{path.stem} ({number}){path.suffix}")
            else:
                return free
    except OSError as error:
        message = f"found {path}, which cannot be written ({error.strerror}), accepted a place to write files"
        raise ClientError.of(f"{message}; choose another folder", "not_written") from error
