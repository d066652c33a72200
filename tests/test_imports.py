"""Which part may import which, and that nothing heavy is imported before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "app/graph": ("app.graph",),
    "app/runtime": ("app.graph", "app.runtime", "app.engine.cancel", "app.folders"),
    "app/engine": ("app.graph", "app.runtime", "app.engine", "app.folders"),
    "nodes": ("app", "nodes"),
    "app/worker": (
        "app.graph",
        "app.engine",
        "app.runtime",
        "app.worker",
        "app.extensions",
        "app.folders",
        "app.png",
        "nodes",
    ),
    # Of what touches ONNX Runtime only what reads files by itself; the worker's home, not the worker.
    "app/server": (
        *("app.graph", "app.server", "app.folders", "app.png", "nodes"),
        *("app.runtime.model_facts", "app.runtime.model_file"),
        *("app.worker.event_json", "app.worker.home", "app.worker.local", "app.worker.node_types"),
        "app.worker.settings",
    ),
}


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_dependencies_point_one_way(part: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / part).rglob("*.py")
        for name in imported_by(path)
        if name.split(".")[0] in ("app", "nodes", "web", "tests") and not name.startswith(MAY_IMPORT[part])
    ]
    assert wrong == []


def imported_by(path: Path) -> list[str]:
    names = []
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            names += [f"{statement.module}.{alias.name}" for alias in statement.names]
    return names


@pytest.mark.parametrize(
    "code",
    [
        "import app.cli",
        "import app.server.app",
        "import app.client",
        "from nodes import builtin_registry; from app.folders import Folders; builtin_registry(Folders())",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str) -> None:
    heavy = "('onnxruntime', 'onnx', 'tokenizers', 'PIL')"
    check = f"import sys; {code}; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"
