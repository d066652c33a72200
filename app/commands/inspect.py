"""`ortloom inspect`: what a model file, or every model in a folder, takes and gives."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from app.commands.setup import print_problems, start_log
from app.graph.errors import InputError, Problem
from app.runtime.model_facts import model_facts
from app.runtime.model_file import read_signature


def main(options: argparse.Namespace) -> int:
    """Print the signatures; returns 1 when the path holds no model or one of them cannot be read."""
    start_log()
    path: Path = options.path
    files = sorted(path.rglob("*.onnx")) if path.is_dir() else [path]
    if not files:
        message = f"found no .onnx file in {str(path)!r}, accepted a model file or a folder of some; check the path"
        return print_problems([Problem(message, "file_missing")])
    facts: dict[str, dict[str, Any]] = {}
    problems: list[Problem] = []
    for file in files:
        try:
            signature = read_signature(file)
            external_files = [str(external) for external in signature.external_files]
            facts[str(file)] = {**model_facts(signature), "external_files": external_files}
        except InputError as error:
            problems.append(Problem(f"{file}: {error.message}", error.code))
    if options.json and facts:
        print(json.dumps(facts, indent=2))
    elif facts:
        print("\n\n".join(_text(name, entry) for name, entry in facts.items()))
    return print_problems(problems) if problems else 0


def _text(name: str, facts: dict[str, Any]) -> str:
    opsets = ", ".join(f"{domain} {version}" for domain, version in facts["opsets"].items())
    ops = facts["ops"]
    lines = [
        name,
        f"  {facts['weight_bytes'] / 1e6:.1f} MB weights, {sum(ops.values())} operators of {len(ops)} kinds, {opsets}",
    ]
    for side in ("inputs", "outputs"):
        lines.append(f"  {side}")
        lines += [f"    {port['name']:32} {port['dtype']} {_dims(port['shape'])}" for port in facts[side]]
    if facts["proposed_state"]:
        lines.append("  state that the names suggest (declare it in the component's input `state` if it is so)")
        lines += [f"    {pair['output']} -> {pair['input']} ({pair['init']})" for pair in facts["proposed_state"]]
    lines += [f"  weights in {file}" for file in facts["external_files"]]
    lines += [f"  {key}: {value[:80]}" for key, value in facts["metadata"].items()]
    return "\n".join(lines)


def _dims(shape: list[Any] | None) -> str:
    return "" if shape is None else f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"
