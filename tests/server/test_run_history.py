"""The history: what it keeps, how it is cut and searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.graph.errors import Problem
from app.server.storage.runs import RunStore
from app.server.storage.schema import RunResult, StoredOutput
from app.server.storage.search import node_types_of, search_text_of
from tests.server.store_kit import DOCUMENT, a_run, end, ids, with_store


def test_the_history_keeps_the_runs_that_ended_last(tmp_path: Path) -> None:
    """keep_runs = 3: of five ended runs the last three stay, whole; queued ones do not count."""

    async def act(store: RunStore) -> None:
        await store.add(a_run("waiting"))
        await end(store, *"abcde", outputs=[StoredOutput("2", "image", "output", "a.png")])
        assert ids(await store.history()) == ["c", "d", "e"]
        await store.delete_ended(["d"])
        await end(store, "f")
        assert ids(await store.history()) == ["c", "e", "f"]
        tables = ("documents", "outputs")
        counts = await store._database.read(
            lambda connection: [connection.execute(f"select count(*) from {table}").fetchone()[0] for table in tables]
        )
        assert counts == [4, 2]

    async def shrink(store: RunStore) -> None:
        await store.recover()
        assert ids(await store.history()) == ["f"]

    with_store(tmp_path, act, keep_runs=3)
    with_store(tmp_path, shrink, keep_runs=1)


@pytest.mark.parametrize(
    ("max_items", "offset", "expected"),
    [
        (None, None, "abcde"),
        (2, None, "de"),
        (9, None, "abcde"),
        (2, 1, "bc"),
        (None, 3, "de"),
        (2, 9, ""),
        (0, None, ""),
        (2, -1, "de"),
        (10**30, 10**30, ""),
    ],
)
def test_the_history_is_cut_as_comfyui_cuts_it(
    tmp_path: Path, max_items: int | None, offset: int | None, expected: str
) -> None:
    """wire-protocol: max_items alone = the newest N, offset counts from the oldest, in insertion order."""

    async def act(store: RunStore) -> list[str]:
        await end(store, *"abcde")
        return ids(await store.history(max_items, offset))

    assert with_store(tmp_path, act) == list(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100%", ["percent"]),
        ("a_b", ["underscore"]),
        ("%", ["percent"]),
        ("_", ["underscore"]),
        ("PENGUIN ice", ["penguin"]),
        ("ice penguin ", ["penguin"]),
        ("ice\\", []),
        ("ÄPFEL", ["umlaut"]),
        ("fog", ["failed"]),
        ("drift/a.png", ["penguin"]),
        ("\ud800\0", []),
        ("word " * 10_000, []),
        ("", ["failed", "umlaut", "penguin", "underscore", "percent"]),
    ],
)
def test_a_search_takes_every_character_for_itself(tmp_path: Path, text: str, expected: list[str]) -> None:
    """%, _ and backslash are no wildcards; words in any order and case, in literals, names, results and errors."""

    async def act(store: RunStore) -> tuple[list[str], int]:
        literals = {"percent": "100% sure", "underscore": "a_b", "umlaut": "äpfel"}
        for name, literal in literals.items():
            document = {"nodes": {"1": {"class_type": "Text", "inputs": {"text": literal}}}}
            if name == "umlaut":
                await store.add(a_run("penguin"))
            await store.add(a_run(name, document=document))
        await store.finish("penguin", RunResult("done", outputs=[StoredOutput("2", "image", "output", "drift/a.png")]))
        await store.add(a_run("failed", document={"nodes": {}}))
        await store.finish("failed", RunResult("failed", problems=[Problem("found fog")]))
        found, total = await store.search(text)
        return ids(found), total

    assert with_store(tmp_path, act) == (expected, len(expected))


def test_a_search_filters_sorts_and_pages(tmp_path: Path) -> None:
    """By node type in full, state, workflow id; longest first means by ended - started, what has not ended last."""

    async def act(store: RunStore) -> None:
        workflow = {"extra_pnginfo": {"workflow": {"id": "w"}}}
        text_only = {"nodes": {"1": {"class_type": "Text", "inputs": {}}}}
        for run in (a_run("a"), a_run("b", document=text_only), a_run("c", extra_data=workflow)):
            await store.add(run)
        for name, seconds in (("a", 100), ("b", 300)):
            await store.mark_running(name)
            run = await store.get(name)
            assert run is not None
            assert run.started is not None
            await store.finish(name, RunResult("done" if name == "a" else "cancelled", ended=run.started + seconds))

        async def found(**query: Any) -> list[str]:
            return ids((await store.search(**query))[0])

        assert await found(node_type="Show|pysssss") == ["c", "a"]
        assert await found(node_type="pysssss") == []
        assert await found(state=["done", "queued"]) == ["c", "a"]
        assert await found(state=[]) == []
        assert await found(workflow_id="w") == ["c"]
        assert await found(order="longest") == ["b", "a", "c"]
        assert await found(order="shortest") == ["a", "b", "c"]
        assert await found(order="oldest", limit=1, offset=1) == ["b"]
        assert (await store.search(limit=1))[1] == 3
        with pytest.raises(ValueError, match="without its document"):
            _ = (await store.search())[0][0].document

    with_store(tmp_path, act)


def test_search_words_and_node_types_come_from_any_document() -> None:
    """Titles and literals, links left out; what has no shape of a node is passed over."""
    assert search_text_of(DOCUMENT).split("\n") == ["Prompt", "Penguin on ice", "snow", "sea"]
    assert node_types_of(DOCUMENT) == ("Show|pysssss", "Text")
    for odd in ({}, {"nodes": []}, {"nodes": {"1": 5, "2": {"class_type": 7, "inputs": [], "_meta": "x"}}}):
        assert (search_text_of(odd), node_types_of(odd)) == ("", ())
