"""A small language of formulas over the numbers a, b, c and d: compiled once for each text, safe to run on any text.

    choice     := either ["if" either "else" choice]
    either     := both ("or" both)*
    both       := negation ("and" negation)*
    negation   := "not" negation | comparison
    comparison := sum (("<" | "<=" | ">" | ">=" | "==" | "!=") sum)*
    sum        := product (("+" | "-") product)*
    product    := sign (("*" | "/" | "//" | "%") sign)*
    sign       := ("-" | "+") sign | power
    power      := atom ["**" sign]
    atom       := number | a | b | c | d | pi | e | function "(" choice ("," choice)* ")" | "(" choice ")"

Operators mean what they mean in Python, `a < b < c` and the value of `a or b` included. There are no attributes, no
other names and no way to reach anything outside; length, nesting and size of numbers are bounded, so that no text can
hang the program.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from app.expression_values import (
    COMPARISONS,
    CONSTANTS,
    FUNCTIONS,
    Closure,
    Number,
    binary,
    calling,
    comparing,
    constant,
    fault,
    variable,
)
from app.graph.errors import InputError

NAMES = ("a", "b", "c", "d")
MAX_LENGTH = 500
MAX_DEPTH = 40

_SPACE = re.compile(r"\s*", re.ASCII)
_TOKEN = re.compile(
    r"(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<symbol>\*\*|//|[<>=!]=|[-+*/%<>(),])",
    re.ASCII,
)
_WORDS = frozenset({"if", "else", "and", "or", "not"})


@dataclass(frozen=True, slots=True)
class Formula:
    """A compiled text.

    names: which of a, b, c and d it reads.
    value: takes the values of a, b, c and d and gives the formula's; raises InputError where it has none.
    """

    names: tuple[str, ...]
    value: Closure


@lru_cache(maxsize=512)
def compile_formula(text: str) -> Formula:
    """Return the compiled formula. Raises InputError, with the position, when the text is not one."""
    if len(text) > MAX_LENGTH:
        fix = "split it over several nodes"
        raise InputError("expression", found=f"{len(text)} characters", accepted=f"at most {MAX_LENGTH}", fix=fix)
    parser = _Parser(_tokens(text))
    value = parser.choice()
    parser.end()
    return Formula(tuple(name for name in NAMES if name in parser.names), value)


class _Token(NamedTuple):
    """kind: "number", "name", "symbol" (words such as `if` included) or "end". position: from 0."""

    kind: str
    text: str
    position: int


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = _end_of_space(text, 0)
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            accepted = "numbers, names, + - * / // % **, comparisons and parentheses"
            raise fault(repr(text[position]), position, accepted, "remove it")
        word = match.group()
        tokens.append(_Token("symbol" if word in _WORDS else str(match.lastgroup), word, position))
        position = _end_of_space(text, match.end())
    return [*tokens, _Token("end", "the end", len(text))]


def _end_of_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


class _Parser:
    """Recursive descent over the tokens of one text; each method reads one rule and gives its closure."""

    def __init__(self, tokens: list[_Token]) -> None:
        self.names: set[str] = set()
        self._tokens = tokens
        self._index = 0
        self._depth = 0

    def choice(self) -> Closure:
        """Read a whole expression."""
        self._enter()
        chosen = self._either()
        if self._take("if"):
            condition = self._either()
            self._expect("else")
            chosen = _choosing(condition, chosen, self.choice())
        self._depth -= 1
        return chosen

    def end(self) -> None:
        """Raise InputError unless everything has been read."""
        if self._next.kind != "end":
            raise self._unexpected("an operator or the end")

    def _either(self) -> Closure:
        left = self._both()
        while self._take("or"):
            left = _or(left, self._both())
        return left

    def _both(self) -> Closure:
        left = self._negation()
        while self._take("and"):
            left = _and(left, self._negation())
        return left

    def _negation(self) -> Closure:
        if not self._take("not"):
            return self._comparison()
        self._enter()
        operand = self._negation()
        self._depth -= 1
        return lambda values: not operand(values)

    def _comparison(self) -> Closure:
        left = self._sum()
        links = []
        while token := self._take(*COMPARISONS):
            links.append((token.text, self._sum()))
        return comparing(left, links) if links else left

    def _sum(self) -> Closure:
        left = self._product()
        while token := self._take("+", "-"):
            left = binary(token.text, token.position, left, self._product())
        return left

    def _product(self) -> Closure:
        left = self._sign()
        while token := self._take("*", "/", "//", "%"):
            left = binary(token.text, token.position, left, self._sign())
        return left

    def _sign(self) -> Closure:
        token = self._take("-", "+")
        if token is None:
            return self._power()
        self._enter()
        operand = self._sign()
        self._depth -= 1
        return operand if token.text == "+" else lambda values: -operand(values)

    def _power(self) -> Closure:
        base = self._atom()
        token = self._take("**")
        if token is None:
            return base
        self._enter()
        exponent = self._sign()
        self._depth -= 1
        return binary("**", token.position, base, exponent)

    def _atom(self) -> Closure:
        token = self._next
        if token.kind == "number":
            self._index += 1
            return constant(_number(token))
        if token.kind == "name":
            self._index += 1
            return self._call(token) if self._take("(") else self._name(token)
        if not self._take("("):
            raise self._unexpected("a number, a name or (")
        inside = self.choice()
        self._expect(")")
        return inside

    def _name(self, token: _Token) -> Closure:
        name = token.text
        if name in NAMES:
            self.names.add(name)
            return variable(NAMES.index(name))
        if name in CONSTANTS:
            return constant(CONSTANTS[name])
        if name in FUNCTIONS:
            raise fault(f"{name} without parentheses", token.position, f"{name}(...)", "write what it is applied to")
        known = f"the names {', '.join((*NAMES, *CONSTANTS))}"
        raise fault(f"the unknown name {name!r}", token.position, known, "wire the value to an input and use its name")

    def _call(self, token: _Token) -> Closure:
        name = token.text
        if name not in FUNCTIONS:
            known = f"the functions {', '.join(FUNCTIONS)}"
            raise fault(f"the unknown function {name!r}", token.position, known, "use one of these")
        arguments = [] if self._next.text == ")" else [self.choice()]
        while arguments and self._take(","):
            arguments.append(self.choice())
        self._expect(")")
        _, fewest, most = FUNCTIONS[name]
        if not fewest <= len(arguments) <= most:
            accepted = f"{fewest}" if fewest == most else f"{fewest} or more" if most > 2 else f"{fewest} or {most}"
            found = f"{name} with {len(arguments)} argument{'' if len(arguments) == 1 else 's'}"
            raise fault(found, token.position, accepted, "add or remove some")
        return calling(name, token.position, arguments)

    @property
    def _next(self) -> _Token:
        return self._tokens[self._index]

    def _take(self, *texts: str) -> _Token | None:
        """Step over the next token and return it if it is one of these symbols, else return None."""
        token = self._next
        if token.kind != "symbol" or token.text not in texts:
            return None
        self._index += 1
        return token

    def _expect(self, text: str) -> None:
        if self._take(text) is None:
            raise self._unexpected(text)

    def _unexpected(self, accepted: str) -> InputError:
        token = self._next
        found = token.text if token.kind == "end" else repr(token.text)
        return fault(found, token.position, accepted, "complete or correct the expression there")

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            fix = "split it over several nodes"
            raise fault("too deep a nesting", self._next.position, f"at most {MAX_DEPTH} levels", fix)


def _number(token: _Token) -> Number:
    if token.text.isdigit():
        return int(token.text)
    value = float(token.text)
    if math.isinf(value):
        raise fault(token.text, token.position, "numbers up to 1.8e308", "write a smaller one")
    return value


def _choosing(condition: Closure, chosen: Closure, other: Closure) -> Closure:
    return lambda values: chosen(values) if condition(values) else other(values)


def _or(left: Closure, right: Closure) -> Closure:
    return lambda values: left(values) or right(values)


def _and(left: Closure, right: Closure) -> Closure:
    return lambda values: left(values) and right(values)
