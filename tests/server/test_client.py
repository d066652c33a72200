"""The Python client against real servers: runs, events over broken connections, live sessions."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from app.client import Client, ClientError, Preview
from tests.server.client_kit import Cable, all_events, local_file, of_steps, slow, within
from tests.server.kit import Server, free_port, serving, template, text_document


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data")) as running:
        yield running


def test_a_template_gives_the_bytes_of_a_local_run(server: Server, tmp_path: Path) -> None:
    """Peer: the engine in this process, on the same template with the same change."""

    async def work() -> tuple[bytes, Path, Path]:
        async with Client(server.url) as client:
            run = await client.submit("text-to-image", set={"Denoise.cfg": 3, "Denoise.steps": 5})
            result = await run.result()
            assert (result.state, result.problems, result.session_loads + result.session_hits) == ("done", (), 3)
            assert [len(times) for times in result.step_seconds_by_loop.values()] == [5]
            (output,) = result.outputs
            first = await client.download(output, tmp_path / "there")
            second = await client.download(output, tmp_path / "there")
            return await client.fetch(output), first, second

    here = local_file(tmp_path / "here", "text-to-image", "Denoise.cfg=3", "Denoise.steps=5").read_bytes()
    data, first, second = within(60, work())
    assert data == here
    assert first.read_bytes() == second.read_bytes() == here
    assert second.name == f"{first.stem} (1).png"


def test_events_come_in_order_with_previews_and_an_end(server: Server) -> None:
    """Expected: what the document says: five steps, each node begun before it is finished, one end, the last event."""

    async def work() -> tuple[list[Any], list[int]]:
        async with (
            Client(server.url) as client,
            connect(f"ws://127.0.0.1:{server.port}/api/events?subscribe=all", proxy=None) as raw,
        ):
            run = await client.submit(template("preview-every-step"), set={"Denoise.steps": 5})
            events = await all_events(run)
            assert [event async for event in run.events()] == []
            numbers = []
            while True:
                frame = await raw.recv()
                if isinstance(frame, str):
                    message = json.loads(frame)
                    numbers.append(message["seq"])
                    if any(event["type"] == "done" for event in message["events"]):
                        return events, numbers

    events, numbers = within(60, work())
    previews = [event for event in events if isinstance(event, Preview)]
    told = [event for event in events if isinstance(event, dict)]
    assert of_steps(told) == [1, 2, 3, 4, 5]
    assert [told[0]["type"], told[-1]["type"]] == ["started", "done"]
    for node in {event["node"] for event in told if event["type"] == "node_finished"}:
        kinds = [event["type"] for event in told if event.get("node") == node and event["type"].startswith("node_")]
        assert kinds == ["node_started", "node_finished"]
    assert previews
    assert all(preview.picture.startswith(b"\xff\xd8\xff") for preview in previews)  # JPEG
    assert all({"run", "node", "step"} <= set(preview.header) for preview in previews)
    assert numbers == sorted(numbers)


def test_runs_that_end_before_their_answer_is_read_are_not_missed(server: Server) -> None:
    async def work() -> list[Any]:
        async with Client(server.url) as client:
            runs = await asyncio.gather(*(client.submit(text_document(str(index % 3))) for index in range(40)))
            results = await asyncio.gather(*(run.result() for run in runs))
            late = await all_events(runs[0])
            assert late[-1]["type"] == "done"
            return [result.outputs[0]["value"] for result in results]

    assert within(60, work()) == [str(index % 3) for index in range(40)]


def test_a_running_run_can_be_cancelled(server: Server) -> None:
    async def work() -> None:
        async with Client(server.url) as client:
            run = await client.submit(slow())
            async for event in run.events():
                if isinstance(event, dict) and event["type"] == "step_finished":
                    assert await run.cancel()
                    break
            assert (await run.result()).state == "cancelled"
            assert not await run.cancel()

    within(60, work())


def test_a_waiting_run_that_is_cancelled_ends(tmp_path: Path) -> None:
    """A paused server starts nothing: the only news of the run is that it was cancelled."""

    async def work(url: str) -> list[Any]:
        async with Client(url) as client:
            run = await client.submit(text_document())
            assert await run.cancel()
            assert (await run.result()).state == "cancelled"
            return await all_events(run)

    with serving(tmp_path, "--paused") as paused:
        assert [event["type"] for event in within(30, work(paused.url))] == ["cancelled"]


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/api/queue/clear"), ("POST", "/api/runs/ID/cancel"), ("DELETE", "/api/runs/ID")]
)
def test_a_waiting_run_that_somebody_else_removes_is_not_waited_for(
    method: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is taken out of the queue is cancelled, or gone, in which case it is as if the server said 404."""
    monkeypatch.setattr("app.client_handles.CHECK_S", 1000)  # the event tells, not a question asked now and then

    async def work(paused: Server) -> str:
        async with Client(paused.url) as client:
            run = await client.submit(text_document())
            waiting = asyncio.create_task(run.result())
            await asyncio.sleep(0)
            await asyncio.to_thread(paused.call, method, path.replace("ID", run.id))
            try:
                return (await waiting).state
            except ClientError as error:
                return str(error.status)

    with serving(tmp_path, "--paused") as paused:
        assert within(30, work(paused)) == ("cancelled" if path.endswith("cancel") else "404")


def test_a_failing_run_tells_its_problems(server: Server) -> None:
    async def work() -> None:
        async with Client(server.url) as client:
            result = await (await client.submit("image-to-image", set={"Picture.image": "none.png"})).result()
            assert result.state == "failed"
            (problem,) = result.problems
            assert (problem.title, problem.input) == ("Picture", "image")
            assert "'none.png'" in problem.message

    within(60, work())


@pytest.mark.parametrize(
    ("workflow", "changes", "status", "part"),
    [
        ("text-to-image", {"Denoise.cfg": "high"}, 422, "Denoise (node 9), input cfg: found 'high'"),
        ("text-to-image", {"Denois.cfg": 3}, 422, "did you mean Denoise?"),
        ("no-such-workflow", {}, 404, "no-such-workflow"),
        ({"nodes": {"1": {"class_type": "Nonsense"}}}, {}, 422, "Nonsense"),
    ],
)
def test_a_workflow_that_cannot_run_is_refused_with_the_servers_sentence(
    workflow: Any, changes: dict[str, Any], status: int, part: str, server: Server
) -> None:
    async def work() -> None:
        async with Client(server.url) as client:
            with pytest.raises(ClientError) as caught:
                await client.submit(workflow, set=changes)
            assert caught.value.status == status
            assert part in str(caught.value)

    within(30, work())


def test_a_live_session_settles_on_what_a_fresh_run_gives(server: Server) -> None:
    """Peer: a run of its own with the last values; live.md asks for the same bytes."""
    last = {"Denoise.cfg": 4.5, "Prompt.text": "owl"}

    async def work() -> None:
        async with Client(server.url) as client:
            live = await client.live(template("text-to-image"), set={"Denoise.steps": 12}, settle_ms=100)
            for cfg in (2.0, 3.0, 4.0):
                revision = await live.set({"Denoise.cfg": cfg})
            assert await live.set(last) == revision + 1 == 5
            with pytest.raises(ClientError, match="input cfg") as caught:
                await live.set({"Denoise.cfg": "high"})
            assert caught.value.problems[0].title == "Denoise"
            state = await live.settled()
            assert (state["revision"], state["shown"]["revision"], state["shown"]["kept"]) == (5, 5, True)
            steered = await client.fetch(state["shown"]["outputs"][0])
            run = await client.submit("text-to-image", set={"Denoise.steps": 12, **last})
            assert steered == await client.fetch((await run.result()).outputs[0])
            assert await live.replace(slow(6)) == 6
            assert (await live.settled())["shown"]["revision"] == 6
            await live.close()
            revisions = [state["revision"] async for state in live.states()]
            assert revisions == sorted(revisions)
            assert revisions[-1] == 6
            with pytest.raises(ClientError, match="no live session"):
                await live.set({"Denoise.cfg": 1})

    within(60, work())


def test_a_cut_connection_loses_no_event_and_doubles_none(server: Server) -> None:
    """Expected: the steps of the document, 1 to 300, each once and in order."""

    async def work() -> list[Any]:
        cable = Cable(server.port)
        async with cable.plugged(), Client(cable.url) as client:
            run = await client.submit(slow(300))
            events = []
            async for event in run.events():
                events.append(event)
                if isinstance(event, dict) and event.get("step") in (20, 120, 200):
                    before = cable.connections
                    cable.cut()
            assert cable.connections > before
            return events

    events = [event for event in within(60, work()) if isinstance(event, dict)]
    assert of_steps(events) == list(range(1, 301))
    assert [event["type"] for event in events].count("started") == 1
    assert events[-1]["type"] == "done"
    assert "missed" not in {event["type"] for event in events}


def test_a_run_is_found_again_when_the_server_was_started_anew(tmp_path: Path) -> None:
    """After kill -9 the run begins again, of which the client, whose events are unknown there, hears all the same."""
    port = free_port()

    async def work() -> None:
        with contextlib.ExitStack() as servers:
            first = await asyncio.to_thread(servers.enter_context, serving(tmp_path, port=port))
            async with Client(first.url) as client:
                run = await client.submit(slow(300))
                events: list[Any] = []
                async for event in run.events():
                    events.append(event)
                    if first.process.poll() is None and event["type"] == "step_finished":
                        first.kill()
                        again = serving(tmp_path, port=port)
                        second = await asyncio.to_thread(servers.enter_context, again)
                assert "missed" in {event["type"] for event in events}
                result = await run.result()
                assert (result.state, events[-1]["type"]) == ("done", "done")
                ended = await client.submit(text_document())
                await ended.result()
                second.kill()
                assert (await ended.result()).outputs[0]["value"] == "hello"

    within(120, work())


def test_who_waits_for_a_server_that_stays_away_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        with serving(tmp_path, "--paused") as lost:
            async with Client(lost.url, reconnect_s=0.5) as client:
                run = await client.submit(text_document())
                live = await client.live(text_document())
                await live.settled()
                lost.kill()
                with pytest.raises(ClientError, match=f"found no server at {lost.url}"):
                    await run.result()
                with pytest.raises(ClientError, match=f"found no server at {lost.url}"):
                    async for _ in live.states():
                        pass
                with pytest.raises(ClientError, match="Connection refused"):
                    await client.submit(text_document())

    within(60, work())


@pytest.mark.parametrize("path", ["../out.png", "/out.png", "a/../../out.png", "C:/out.png", "CON", "a\0.png"])
def test_a_servers_file_name_never_leaves_the_folder(path: str, server: Server, tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(server.url) as client:
            with pytest.raises(ClientError, match="cannot be written here"):
                await client.download(
                    {"node": "1", "type": "image", "folder": "output", "path": path}, tmp_path / "out"
                )

    within(30, work())
    assert not list(tmp_path.rglob("*.png"))


@pytest.mark.parametrize("url", ["127.0.0.1:8188", "ftp://127.0.0.1", "http://", "http://h:x", ""])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ClientError, match="accepted an address such as"):
        Client(url)
