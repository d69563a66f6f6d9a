"""Convert pydantic's validation errors to problems with key, value and remedy."""

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
"""pydantic error type -> the expected value in words."""

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
"""pydantic error type -> message and remedy, with pydantic's bounds as placeholders."""

_GUESS = re.compile("Did you mean '(.+)'")


def problems_in(error: ValidationError, *, model: type[BaseModel], data: Any, at: Path = ()) -> list[Problem]:
    """The problems of a failed validation of `data`, whose path in the file is `at`."""
    problems: dict[tuple[str, str], Problem] = {}
    for detail in error.errors(include_url=False):
        problem = _problem(dict(detail), model, data, at)
        problems.setdefault((problem.path, problem.message), problem)
    return _merge_typo_problems(_merge_union_problems(list(problems.values())))


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
    if kind == "value_error":  # the exception of a model's own check
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
    """The problem of a model's own check, whose message is the fault and then the remedy, a sentence each."""
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
    # Other error types: pydantic's message in lower case.
    message = str(detail["msg"]).replace("Input should", "should").replace("Value should", "should")
    return message[:1].lower() + message[1:], "Change it to fit."


def _real_path(loc: tuple[str | int, ...], data: Any, *, missing: bool) -> Path:
    """`loc` without the names of union members that pydantic adds."""
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


def _merge_union_problems(problems: list[Problem]) -> list[Problem]:
    """Merge the problems of a union's members about one value; drop them if a member has problems inside the value."""
    merged: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        wrong_type = problem.message.startswith("should be ")
        if wrong_type and any(other.path.startswith((f"{problem.path}.", f"{problem.path}[")) for other in problems):
            continue
        key = (problem.path, "should be" if wrong_type else problem.message)
        if key in merged:
            also = problem.message.removeprefix("should be ")
            problem = replace(merged[key], message=f"{merged[key].message} or {also}")
        merged[key] = problem
    return list(merged.values())


def _merge_typo_problems(problems: list[Problem]) -> list[Problem]:
    """Drop a missing key if an unknown key is a misspelling of it."""
    typos = [
        (problem, _GUESS.search(problem.hint)) for problem in problems if problem.message.startswith("unknown key")
    ]
    intended = {f"{problem.path.rpartition('.')[0]}.{guess[1]}".lstrip(".") for problem, guess in typos if guess}
    return [
        problem for problem in problems if not (problem.message.endswith("is missing") and problem.path in intended)
    ]
