"""Where models, input files and outputs live, and how a name in a workflow becomes a path inside those folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.graph.errors import InputError

PROGRAM = Path(__file__).resolve().parent.parent
BUNDLED_WORKFLOWS = PROGRAM / "workflows"
BUNDLED_MODELS = BUNDLED_WORKFLOWS / "models"
BUNDLED_INPUTS = BUNDLED_WORKFLOWS / "inputs"


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders that a run may read from and write to.

    models, inputs: searched in order. output: files that output nodes write.
    shows_paths: whether errors name the folders in full; a server tells its clients their last parts only.
    """

    models: tuple[Path, ...] = (BUNDLED_MODELS,)
    inputs: tuple[Path, ...] = (BUNDLED_INPUTS,)
    output: Path = Path("output")
    shows_paths: bool = True

    def model(self, name: str, input: str = "model") -> Path:
        """Return the model file or folder of that name. Raises InputError when it is missing or outside."""
        return self._find(name, self.models, input, "a model", "add its folder with --models")

    def input(self, name: str, input: str = "file") -> Path:
        """Return the input file of that name. Raises InputError when it is missing or outside."""
        fix = "add its folder with --inputs, or upload it to the server"
        return self._find(name, self.inputs, input, "an input file", fix)

    def _find(self, name: str, roots: tuple[Path, ...], input: str, what: str, fix: str) -> Path:
        shown = (str(root) if self.shows_paths else root.name for root in roots)
        accepted = f"{what} inside {' or '.join(shown)}"
        if not isinstance(name, str) or not name or "\0" in name:
            raise InputError(input, found=repr(name), accepted=accepted, fix="give its path relative to such a folder")
        for root in roots:
            path = root / name
            if _is_there(path, root):
                return path
        outside = Path(name).is_absolute() or ".." in Path(name).parts
        found = f"{name!r}, which is {'outside of these folders' if outside else 'not there'}"
        code = "file_outside" if outside else "file_missing"
        raise InputError(input, found=found, accepted=accepted, fix=fix, code=code)


def _is_there(path: Path, root: Path) -> bool:
    """Return whether the path exists and stays inside of the root, links followed."""
    try:
        return path.resolve().is_relative_to(root.resolve()) and path.exists()
    except (OSError, RuntimeError, ValueError):
        # A name too long for the system, links in a circle (RuntimeError before Python 3.13), half a surrogate pair.
        return False
