"""What a YAML parser's error means, in a sentence with a remedy.

Both parsers (libyaml and the pure Python one) word their errors for people who know the grammar. `explain` looks at
the error and at the text around it. A new case is one function and one row of `_RULES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from ...errors import Problem
from .report import excerpt

_LONGEST_KEY = 1_024
"""A key that is followed by ':' on its line may not be longer; the YAML specification sets this limit."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """A parser's complaint: where reading stopped, and where the thing being read began."""

    text: str
    problem: str
    context: str
    at: Any
    began: Any

    @property
    def character(self) -> str:
        """The character at which reading stopped; empty at the end of the text."""
        return self.text[self.at.index : self.at.index + 1]

    @property
    def before(self) -> str:
        """The part of the line in front of the place where reading stopped."""
        return self.line_of(self.at)[: self.at.column]

    @property
    def rest(self) -> str:
        """The line from the place where reading stopped."""
        return excerpt(self.line_of(self.at)[self.at.column :].strip())

    def line_of(self, mark: Any) -> str:
        start = mark.index - mark.column
        end = re.compile("[\r\n]|$").search(self.text, mark.index)
        return self.text[start : end.start() if end else None]

    def says(self, mark: Any, message: str, hint: str) -> Problem:
        line = excerpt(self.line_of(mark).strip(), 200)
        shown = {"value": line} if line else {}
        return Problem(message, hint=hint, line=mark.line + 1, column=mark.column + 1, **shown)


def explain(error: yaml.MarkedYAMLError, text: str) -> Problem:
    """The problem, with line, column and remedy, that `error` reports about `text`."""
    at = error.problem_mark or error.context_mark
    if at is None:
        return Problem(f"this is not valid YAML: {error}")
    fault = _Fault(text, str(error.problem or ""), str(error.context or ""), at, error.context_mark or at)
    for pattern, rule in _RULES:
        if re.search(pattern, f"{fault.context}; {fault.problem}"):
            found = rule(fault)
            if found is not None:
                return found
    complaint = "; ".join(part for part in (fault.context, fault.problem) if part)
    return fault.says(at, f"this is not valid YAML: {complaint}", "Check this line and the one above it.")


def _tab(fault: _Fault) -> Problem | None:
    line = fault.line_of(fault.at)
    if "\t" in line[: len(line) - len(line.lstrip())]:
        hint = "Replace every tab at the start of a line by spaces, two per level."
        return fault.says(fault.at, "this line is indented with a tab; YAML is indented with spaces only", hint)
    if fault.character == "\t":
        return fault.says(fault.at, "a tab stands where YAML wants a space", "Replace the tab by a space.")
    return None


def _first_character(fault: _Fault) -> Problem:
    hint = f"Put the value in quotes: '{fault.rest}'."
    return fault.says(fault.at, f"an unquoted value cannot begin with '{fault.character}'", hint)


def _open_quote(fault: _Fault) -> Problem:
    quote = fault.text[fault.began.index : fault.began.index + 1]
    end = "before the text ends" if not fault.character else f"before the '{fault.rest}' on line {fault.at.line + 1}"
    hint = f"Add the closing {quote} where the value ends."
    return fault.says(fault.began, f"the quote {quote} opened here is not closed {end}", hint)


def _escape(fault: _Fault) -> Problem:
    line = fault.line_of(fault.at)
    start = line.rfind("\\", 0, fault.at.column + 1)
    found = re.match(r"\\(?:[xuU][0-9a-fA-F]{0,8}|.)", line[max(start, 0) :])
    sequence = found.group() if found else "\\"
    hint = "Write \\\\ for a backslash, put the text in single quotes, or write a special character as itself."
    return fault.says(fault.at, f"'{sequence}' is not an escape that double quotes allow", hint)


def _second_colon(fault: _Fault) -> Problem:
    if fault.at.column > _LONGEST_KEY and not re.search(r":\s", fault.before):
        hint = "Shorten the key, or check for a missing line break."
        return fault.says(fault.at, f"the text in front of this ':' is longer than {_LONGEST_KEY} characters", hint)
    if re.search(r":\s|^\s*[\"'].*[\"']\s*$", fault.before):
        hint = "Put the whole value in quotes, or move what follows to a line of its own."
        return fault.says(fault.at, "an unquoted value cannot contain ': ', and one line holds one key", hint)
    hint = "Check the indentation of both lines, and that every key is followed by ': '."
    return fault.says(
        fault.at, "a key cannot start here, because the line above is not finished or has a value already", hint
    )


def _missing_colon(fault: _Fault) -> Problem:
    line = excerpt(fault.line_of(fault.began).strip())
    glued = re.match(r"([\w.-]+):((?!//)\S.*)", line)
    if glued:
        hint = f"Write '{glued[1]}: {glued[2]}', with a space after the colon."
        return fault.says(fault.began, "there is no space after the ':'", hint)
    hint = "Write 'key: value'; if the line continues the value above, indent it further than that value's key."
    return fault.says(fault.began, "this line has no ': '", hint)


def _among_keys(fault: _Fault) -> Problem:
    if re.search(r"[\"'\]}]\s*$", fault.before):
        hint = "Put the whole value in quotes, with '' for a ' inside it; also look for a quote left open further up."
        return fault.says(fault.at, f"'{fault.rest}' follows a value that has already ended", hint)
    if fault.character == ":":
        return fault.says(fault.at, "there is no key in front of this ':'", "Write 'key: value'.")
    started = f"the mapping that starts on line {fault.began.line + 1}, column {fault.began.column + 1}"
    if re.match(r"-(\s|$)", fault.rest):
        hint = "Align the '-' with the other items of its list, or give the list a key."
        return fault.says(fault.at, f"a list item stands where {started} expects a key", hint)
    if fault.before.strip():
        return fault.says(fault.at, f"'{fault.rest}' cannot stand here", "Put the whole value in quotes if it is text.")
    hint = "Give it the same indentation as the keys it belongs to."
    return fault.says(fault.at, f"the indentation of this line matches no key of {started}", hint)


def _among_items(fault: _Fault) -> Problem:
    started = f"the list that starts on line {fault.began.line + 1}, column {fault.began.column + 1}"
    hint = "Begin the line with '- ', or change its indentation to match what it belongs to."
    return fault.says(fault.at, f"this line stands among the items of {started} and is not one", hint)


def _list_after_key(fault: _Fault) -> Problem:
    hint = "Put each '- item' on a line of its own below the key, or write [a, b]; quote the value if it is text."
    return fault.says(fault.at, "a list with '-' cannot start on the line of its key", hint)


def _open_bracket(fault: _Fault) -> Problem:
    opening = fault.text[fault.began.index : fault.began.index + 1]
    closing = {"[": "]", "{": "}"}.get(opening, "]")
    hint = f"Add the missing '{closing}' or ','; put text that contains any of [ ] {{ }} , : # in quotes."
    if fault.at.line == fault.began.line:
        found = f"'{fault.rest}'" if fault.rest else "the end of the line"
        return fault.says(fault.at, f"expected ',' or '{closing}' before {found}", hint)
    stopped = f"reading stopped on line {fault.at.line + 1}" if fault.character else "the text ends"
    return fault.says(fault.began, f"the '{opening}' opened here is not closed: {stopped}", hint)


def _no_value(fault: _Fault) -> Problem:
    found = f"'{fault.character}'" if fault.character.strip() else "the end of the line"
    hint = "Add the missing value, or put the text in quotes if the character belongs to it."
    return fault.says(fault.at, f"expected a value before {found}", hint)


def _anchor_name(fault: _Fault) -> Problem:
    sign = fault.text[fault.began.index : fault.began.index + 1]
    kind = "an alias" if sign == "*" else "an anchor"
    rest = excerpt(fault.line_of(fault.began)[fault.began.column :].strip())
    message = f"an unquoted '{sign}' starts {kind}, and what follows is not a name"
    return fault.says(fault.began, message, f"Put the value in quotes: '{rest}'.")


def _tag(fault: _Fault) -> Problem:
    message = "an unquoted '!' starts a tag, and this is not one that is known here"
    return fault.says(fault.began, message, "Put the value in quotes if it is text, otherwise remove the tag.")


def _block_text(fault: _Fault) -> Problem:
    hint = "Start the text on the next line, indented; put the value in quotes if '|' or '>' belongs to it."
    return fault.says(fault.at, "only '-', '+' or a digit from 1 to 9 may follow '|' or '>' on the same line", hint)


def _directive(fault: _Fault) -> Problem:
    hint = "Remove the line that begins with '%', or put '---' on the line after it."
    return fault.says(fault.at, "a line that begins with '%' is a YAML directive, and this one cannot be used", hint)


def _after_the_end(fault: _Fault) -> Problem:
    if fault.text.lstrip().startswith("%"):
        return _directive(fault)
    hint = "Give all top-level keys the same indentation, and put text with special characters in quotes."
    return fault.says(fault.at, "this line does not belong to what stands above it", hint)


def _question_mark(fault: _Fault) -> Problem:
    return fault.says(fault.at, "an unquoted value cannot begin with '? '", "Put the value in quotes.")


_RULES: tuple[tuple[str, Callable[[_Fault], Problem | None]], ...] = (
    ("quoted scalar; found unexpected", _open_quote),
    ("quoted scalar", _escape),
    ("", _tab),
    ("expected '?<document start>", _after_the_end),
    ("cannot start any token", _first_character),
    ("mapping values are not allowed", _second_colon),
    ("expected ':'", _missing_colon),
    ("parsing a block mapping", _among_keys),
    ("parsing a block collection", _among_items),
    ("sequence entries are not allowed", _list_after_key),
    ("mapping keys are not allowed", _question_mark),
    ("parsing a flow (sequence|mapping)", _open_bracket),
    ("node content", _no_value),
    ("scanning an? (alias|anchor)", _anchor_name),
    ("(scanning|parsing) a tag|tag handle", _tag),
    ("scanning a block scalar", _block_text),
    ("(?i)directive|incompatible YAML", _directive),
)
"""First match wins; a rule that answers None passes the fault on."""
