"""Errors that a user reads: one sentence that says what is wrong, what was found, what is accepted, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a workflow.

    message: the whole sentence, ready to be shown.
    code: stable identifier for programs, e.g. "required_input_missing".
    node, title, input: where it is; empty when it concerns the whole document.
    """

    message: str
    code: str = "invalid"
    node: str = ""
    title: str = ""
    input: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message

    @property
    def place(self) -> str:
        """Human name of the spot, e.g. `Denoise (node 5), input cfg`; empty for the whole document."""
        if not self.node:
            return ""
        name = f"{self.title} (node {self.node})" if self.title else f"node {self.node}"
        return f"{name}, input {self.input}" if self.input else name


class WorkflowError(Exception):
    """A workflow cannot run. Holds every problem found, at least one."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    @classmethod
    def of(cls, message: str, code: str = "invalid", **place: str) -> WorkflowError:
        """Return an error with a single problem."""
        return cls([Problem(message, code, **place)])


class InputError(Exception):
    """A value that a node cannot use; raised by nodes, which do not know where they stand in a workflow.

    input: name of the offending input, or empty when it concerns the node as a whole.
    The sentence is built from its parts so that none is forgotten.
    """

    def __init__(self, input: str, *, found: object, accepted: object, fix: str, code: str = "invalid_input") -> None:
        self.input = input
        self.code = code
        self.message = f"found {found}, accepted {accepted}; {fix}"
        super().__init__(f"{input}: {self.message}" if input else self.message)

    def at(self, node: str, title: str) -> Problem:
        """Return the same problem placed at a node."""
        return Problem(self.message, self.code, node, title, self.input)
