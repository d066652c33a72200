"""Runs in the database: their turns, what comes back, what a restart makes of those that ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.graph.errors import Problem
from app.server.storage.runs import RunStore
from app.server.storage.schema import RunResult, StoredOutput
from app.server.storage.statements import DuplicateRun
from tests.server.store_kit import a_run, add_all, end, ids, with_store


def test_runs_have_their_turn_in_comfyuis_order(tmp_path: Path) -> None:
    """Recorded from ComfyUI 0.27.1: A running, then B, C, D in front, E with number -0.5 run as D, E, B, C."""

    async def act(store: RunStore) -> None:
        await store.add(a_run("A"))
        assert await store.mark_running("A")
        for new in (a_run("B"), a_run("C"), a_run("D", front=True), a_run("E", priority=-0.5)):
            await store.add(new)
        assert await store.queue_counts() == (1, 4)
        assert ids(await store.running()) == ["A"]
        waiting = await store.queued()
        assert ids(waiting) == ["D", "E", "B", "C"]
        assert [run.priority for run in waiting] == [-4, -0.5, 2, 3]
        turns = []
        while run := await store.next_queued():
            assert await store.mark_running(run.id)
            turns.append(run.id)
        assert turns == ["D", "E", "B", "C"]

    with_store(tmp_path, act)


def test_a_run_comes_back_as_it_was_added_and_finished(tmp_path: Path) -> None:
    """What is read equals what was given, in another process's lifetime too; half a surrogate pair is no obstacle."""
    new = a_run(
        "a",
        source="comfy",
        name="ice\ud800",
        client_id="me",
        prompt={"1": {"inputs": {"text": "\ud800 \N{PENGUIN}"}}},
        extra_data={"extra_pnginfo": {"workflow": {"id": "w-1"}}},
        targets=["2"],
        priority=5,
    )
    result = RunResult(
        "failed",
        problems=[Problem("found fog, accepted ice; wait", "fog", "1", "Prompt", "text")],
        outputs=[
            StoredOutput("2", "image", "output", "ice/a.png", step=3),
            StoredOutput("2", "text", value={"n": [1]}),
        ],
        messages=[["execution_start", {"timestamp": 1}]],
        seconds=1.5,
        seconds_by_node={"1": 0.5},
        step_seconds_by_loop={"1": [0.25, 0.25]},
        cached=["2"],
        session_loads=1,
        session_hits=2,
    )

    async def act(store: RunStore) -> None:
        added = await store.add(new)
        assert added == await store.get("a")
        assert await store.mark_running("a")
        assert not await store.mark_running("a")
        assert await store.finish("a", result)
        assert not await store.finish("a", RunResult("done"))
        assert await store.get("b\ud800") is None

    with_store(tmp_path, act)
    run = with_store(tmp_path, lambda store: store.get("a"))
    assert run is not None
    assert (run.document, run.prompt, run.extra_data) == (new.document, new.prompt, new.extra_data)
    assert (run.name, run.workflow_id, run.targets, run.priority) == ("ice?", "w-1", ("2",), 5)
    assert isinstance(run.priority, int)
    assert run.node_types == ("Show|pysssss", "Text")
    for name in ("state", "messages", "seconds", "seconds_by_node", "step_seconds_by_loop", "session_hits"):
        assert getattr(run, name) == getattr(result, name)
    assert (run.problems, run.outputs) == (tuple(result.problems), tuple(result.outputs))
    assert run.started is not None
    assert run.ended is not None
    assert run.created <= run.started <= run.ended


def test_a_second_run_with_one_id_and_a_priority_without_order_are_refused(tmp_path: Path) -> None:
    """Each is an error of its own; nothing of them stays."""

    async def act(store: RunStore) -> None:
        await store.add(a_run("a"))
        with pytest.raises(DuplicateRun, match="'a'"):
            await store.add(a_run("a"))
        for priority in (float("nan"), float("inf"), 10**400):
            with pytest.raises(ValueError, match="accepted a finite number"):
                await store.add(a_run("c", priority=priority))
        assert ids(await store.queued(documents=False)) == ["a"]

    with_store(tmp_path, act)


def test_deleting_and_clearing_touch_only_what_they_name(tmp_path: Path) -> None:
    """ComfyUI: POST /queue never touches the running run, unknown ids are ignored; POST /history only ended ones."""

    async def act(store: RunStore) -> None:
        await end(store, "done", "old")
        await add_all(store, ("running", "b", "c", "d", "e"))
        await store.mark_running("running")
        assert await store.delete_queued(["b", "running", "done", "unknown"]) == 1
        assert await store.delete_ended(["old", "running", "c"]) == 1
        await store.add(a_run("front", front=True))
        assert await store.clear_queued() == ["front", "c", "d", "e"]
        assert await store.queue_counts() == (1, 0)
        assert ids(await store.history()) == ["done"]
        assert await store.clear_history() == 1
        assert await store.get("done") is None
        assert ids(await store.running()) == ["running"]
        assert (await store.add(a_run("next"))).number == 9

    with_store(tmp_path, act)


def test_runs_that_the_server_left_running_have_their_turn_again(tmp_path: Path) -> None:
    """After the first and second end they wait before their equals; the third makes them failed, with a sentence."""

    async def start(store: RunStore) -> list[str]:
        return await store.recover()

    async def fill(store: RunStore) -> None:
        for name in ("a", "b", "c"):
            await store.add(a_run(name, priority=7))
        await store.mark_running("a")

    with_store(tmp_path, fill)
    for attempts in (1, 2):

        async def act(store: RunStore, attempts: int = attempts) -> None:
            assert await store.recover() == ["a"]
            run = await store.next_queued()
            assert run is not None
            assert (run.id, run.state, run.attempts, run.started) == ("a", "queued", attempts, None)
            assert ids(await store.queued()) == ["a", "b", "c"]
            await store.mark_running("a")

        with_store(tmp_path, act)
    assert with_store(tmp_path, start) == []
    failed, total = with_store(tmp_path, lambda store: store.search("server ended", state="failed"))
    assert (ids(failed), total) == (["a"], 1)
    assert "was running when the server ended 3 times" in failed[0].problems[0].message


def test_a_run_put_back_in_peace_counts_no_attempt(tmp_path: Path) -> None:
    """Only a server that ended without a word can be the run's fault."""

    async def act(store: RunStore) -> None:
        await add_all(store, ("a", "b"))
        await store.mark_running("a")
        assert await store.put_back("a")
        assert not await store.put_back("b")
        run = await store.next_queued()
        assert run is not None
        assert (run.id, run.attempts) == ("a", 0)

    with_store(tmp_path, act)
