"""One engine over the tiny models for all topology tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.kit import engine, values, workflow
from tests.topology.models import write_models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def run(models: Path, tmp_path: Path) -> Callable[..., list[Any]]:
    """Run a graph and return what its node `out` showed."""
    shared = engine(tmp_path, models=models)

    def execute(**nodes: Any) -> list[Any]:
        return values(shared.run(workflow(**nodes)))

    return execute
