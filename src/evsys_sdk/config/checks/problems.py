"""pydantic's validation errors -> problems that name the key, the value and the remedy."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from ...errors import MISSING, Problem, closest
from ..base import NAME_PATTERN, field_docs
from ..fields import Path, child, join_path, models_at
from .remedies import how_to_write, where_the_key_belongs

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}
"""pydantic error type -> what should have stood there, in words."""

_BOUNDS = {
    "greater_than_equal": ("should be at least {ge}", "Use {ge} or more."),
    "greater_than": ("should be more than {gt}", "Use a number above {gt}."),
    "less_than_equal": ("should be at most {le}", "Use {le} or less."),
    "less_than": ("should be less than {lt}", "Use a number below {lt}."),
    "finite_number": ("should be a finite number", "Use an ordinary number."),
    "string_too_short": ("should have at least {min_length} characters", "Give it a longer text."),
    "string_too_long": ("should have at most {max_length} characters", "Shorten it."),
    "too_short": ("should have at least {min_length} items", "Add what is missing, or remove the key."),
    "too_long": ("should have at most {max_length} items", "Remove some."),
}
"""pydantic error type -> message and remedy, with what pydantic knows about the bound."""

_GUESS = re.compile("Did you mean '(.+)'")


def problems_in(error: ValidationError, *, model: type[BaseModel], data: Any, at: Path = ()) -> list[Problem]:
    """Every problem of a failed validation of `data`; `at` is where `data` stands in the file."""
    found: dict[tuple[str, str], Problem] = {}
    for detail in error.errors(include_url=False):
        problem = _problem(dict(detail), model, data, at)
        found.setdefault((problem.path, problem.message), problem)
    return _one_per_typo(_one_per_union(list(found.values())))


def _problem(detail: dict[str, Any], model: type[BaseModel], data: Any, at: Path) -> Problem:
    kind: str = detail["type"]
    loc = _real_path(detail["loc"], data, missing=kind == "missing")
    where = join_path((*at, *loc))
    value: Any = detail["input"]
    if kind == "extra_forbidden":
        siblings = functools.reduce(child, loc[:-1], data)
        if value is None and isinstance(loc[-1], str) and " " in loc[-1].strip():  # `{ claim: Better, and faster }`
            hint = "If it belongs to the text before the comma, put that whole text in quotes."
            return Problem(f"unknown key '{loc[-1]}'", path=where, hint=hint)
        return Problem(f"unknown key '{loc[-1]}'", path=where, hint=where_the_key_belongs(model, loc, siblings))
    if kind == "missing":
        return _describe_missing(model, loc, where)
    if kind == "value_error":  # of our own check, whose exception pydantic hands on
        return describe_failed_check(detail["ctx"]["error"], (*at, *loc), value)
    if kind == "literal_error":
        return _not_a_choice(detail["ctx"]["expected"], where, value)
    if kind in _EXPECTED:
        hint = how_to_write(_EXPECTED[kind], value, models_at(model, loc))
        return Problem(f"should be {_EXPECTED[kind]}", path=where, value=value, hint=hint)
    if kind == "string_pattern_mismatch" and detail["ctx"]["pattern"] == NAME_PATTERN:
        hint = "Avoid slashes, control characters, and a dot or space in front."
        return Problem("is not usable as a name", path=where, value=value, hint=hint)
    message, hint = _out_of_bounds(kind, detail)
    return Problem(message, path=where, value=value, hint=hint)


def _describe_missing(model: type[BaseModel], loc: Path, where: str) -> Problem:
    name = str(loc[-1])
    owners = [owner for owner in models_at(model, loc[:-1]) if name in owner.model_fields]
    meanings = [owner.model_fields[name].description or field_docs(owner).get(name, "") for owner in owners]
    hint = f"Add it: {meanings[0]}" if any(meanings) else "Add it."
    return Problem(f"the key '{name}' is missing", path=where, hint=hint)


def describe_failed_check(error: Exception, path: Path = (), value: Any = MISSING) -> Problem:
    """A model's own check: its message is a sentence with the fault and a sentence with the remedy."""
    message, _, hint = str(error).partition(". ")
    shown = value if isinstance(value, str | int | float) else MISSING
    return Problem(message, path=join_path((*path, *getattr(error, "path", ()))), value=shown, hint=hint)


def _not_a_choice(expected: str, where: str, value: Any) -> Problem:
    choices = [choice.strip(" '") for choice in expected.replace(" or ", ",").split(",")]
    guess = closest(value, choices) if isinstance(value, str) else None
    hint = f"Did you mean '{guess}'?" if guess else "Use one of these." if len(choices) > 1 else "Use that."
    return Problem(f"should be {expected}", path=where, value=value, hint=hint)


def _out_of_bounds(kind: str, detail: dict[str, Any]) -> tuple[str, str]:
    context = detail.get("ctx", {})
    if kind in ("string_too_short", "too_short") and context["min_length"] == 1:
        return "should not be empty", "Fill it in." if kind == "string_too_short" else "Add an item or remove the key."
    if kind in _BOUNDS:
        message, hint = _BOUNDS[kind]
        bounds = {key: f"{value:g}" if isinstance(value, float) else value for key, value in context.items()}
        return message.format(**bounds), hint.format(**bounds)
    # A kind of error that no table above knows: pydantic's own words, without its capital letter.
    message = str(detail["msg"]).replace("Input should", "should").replace("Value should", "should")
    return message[:1].lower() + message[1:], "Change it to fit."


def _real_path(loc: tuple[str | int, ...], data: Any, *, missing: bool) -> Path:
    """`loc` without the names of union members that pydantic puts into it."""
    path: list[str | int] = []
    node = data
    for index, part in enumerate(loc):
        inner = child(node, part)
        if inner is not MISSING:
            node = inner
            path.append(part)
        elif missing and index == len(loc) - 1:
            path.append(part)
    return tuple(path)


def _one_per_union(problems: list[Problem]) -> list[Problem]:
    """Merge what the members of a union say about one value, and drop it where a member has more to say inside."""
    settled: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        wrong_type = problem.message.startswith("should be ")
        if wrong_type and any(other.path.startswith((f"{problem.path}.", f"{problem.path}[")) for other in problems):
            continue
        key = (problem.path, "should be" if wrong_type else problem.message)
        if key in settled:
            also = problem.message.removeprefix("should be ")
            problem = replace(settled[key], message=f"{settled[key].message} or {also}")
        settled[key] = problem
    return list(settled.values())


def _one_per_typo(problems: list[Problem]) -> list[Problem]:
    """Drop the missing key that an unknown key was meant to be."""
    typos = [
        (problem, _GUESS.search(problem.hint)) for problem in problems if problem.message.startswith("unknown key")
    ]
    meant = {f"{problem.path.rpartition('.')[0]}.{guess[1]}".lstrip(".") for problem, guess in typos if guess}
    return [problem for problem in problems if not (problem.message.endswith("is missing") and problem.path in meant)]
