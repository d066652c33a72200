"""Cancelling inside a session call, and using the session again."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from app.engine.cancel import CancelToken, RunCancelled
from app.runtime.sessions import SessionPool
from tests.runtime.graphs import component, save

OPERATORS = 300
SIZE = 384


def shifting(folder: Path) -> Path:
    """Write a model of many matrix products, each of which moves all rows down by one: exact in float32."""
    steps = "\n".join(f"x{index + 1} = MatMul(shift, x{index})" for index in range(OPERATORS))
    graph = f"(float[{SIZE},{SIZE}] x0) => (float[{SIZE},{SIZE}] x{OPERATORS}) {{ {steps} }}"
    return save(folder, "m", graph, {"shift": np.roll(np.eye(SIZE, dtype=np.float32), 1, axis=0)})


def test_a_call_of_many_operators_ends_within_about_one_and_the_session_works_again(tmp_path: Path) -> None:
    """A tenth of the whole call's time is allowed for the end: thirty operators, and a busy machine's scheduling."""
    pool = SessionPool()
    path = shifting(tmp_path)
    x = np.arange(SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE)
    expected = np.roll(x, OPERATORS, axis=0)
    made = component(path, pool=pool)
    made.run({"x0": x}, 0)
    started = time.perf_counter()
    np.testing.assert_array_equal(made.run({"x0": x}, 0)[0], expected)
    whole = time.perf_counter() - started
    made.close()

    cancel = CancelToken()
    made = component(path, pool=pool, cancel=cancel)
    cancelled_at: list[float] = []

    def stop() -> None:
        cancelled_at.append(time.perf_counter())
        cancel.cancel()

    timer = threading.Timer(whole / 4, stop)
    timer.start()
    with pytest.raises(RunCancelled):
        made.run({"x0": x}, 0)
    assert time.perf_counter() - cancelled_at[0] < whole / 10 + 0.05
    timer.join()
    made.close()

    np.testing.assert_array_equal(component(path, pool=pool).run({"x0": x}, 0)[0], expected)
    assert pool.loads == 1


def test_a_run_that_was_cancelled_before_does_not_compute(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cancel = CancelToken()
    cancel.cancel()
    made = component(shifting(tmp_path), cancel=cancel)
    with pytest.raises(RunCancelled):
        made.run({"x0": np.zeros((SIZE, SIZE), np.float32)}, 0)
    assert tuple(capfd.readouterr()) == ("", "")


def test_the_token_decides_and_not_the_words_of_the_error(tmp_path: Path) -> None:
    """A model whose failure talks about terminating has failed all the same."""
    made = component(
        save(tmp_path, "m", "(float[n] x, int64[k] terminate) => (float[k] y) { y = Gather(x, terminate) }")
    )
    with pytest.raises(Exception, match="fails") as caught:
        made.run({"x": np.zeros(1, np.float32), "terminate": [5]}, 0)
    assert not isinstance(caught.value, RunCancelled)
