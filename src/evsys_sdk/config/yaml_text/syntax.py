"""What a YAML parser's error means, in a sentence with a remedy.

Both parsers (libyaml and the pure Python one) word their errors for people who know the grammar. `explain` looks at
the error and at the text around it. A new case is one row of `_RULES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from ...errors import Problem
from .compose import excerpt

_LONGEST_KEY = 1_024
"""A key that is followed by ':' on its line may not be longer; the YAML specification sets this limit."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """A parser's complaint: where reading stopped, and where the thing being read began."""

    text: str
    at: Any
    began: Any

    def line_of(self, mark: Any) -> str:
        end = re.compile("[\r\n]|$").search(self.text, mark.index)
        return self.text[mark.index - mark.column : end.start() if end else None]

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

    @property
    def stopped(self) -> str:
        """What stands there, as a sentence calls it."""
        return f"'{self.rest}'" if self.rest else "the end of the line"

    @property
    def sign(self) -> str:
        """The first character of what was being read: a quote, a bracket, `*`, `&`."""
        return self.text[self.began.index : self.began.index + 1]

    @property
    def closing(self) -> str:
        return {"[": "]", "{": "}"}.get(self.sign, "]")

    @property
    def begun(self) -> str:
        """The line on which it began, from there."""
        return excerpt(self.line_of(self.began)[self.began.column :].strip())

    @property
    def start(self) -> str:
        return f"starts on line {self.began.line + 1}, column {self.began.column + 1}"

    @property
    def unclosed(self) -> str:
        return f"before the '{self.rest}' on line {self.at.line + 1}" if self.character else "before the text ends"

    @property
    def reached(self) -> str:
        return f"reading stopped on line {self.at.line + 1}" if self.character else "the text ends"

    @property
    def escape(self) -> str:
        """The escape in double quotes that reading stopped in."""
        line = self.line_of(self.at)
        found = re.match(r"\\(?:[xuU][0-9a-fA-F]{0,8}|.)", line[max(line.rfind("\\", 0, self.at.column + 1), 0) :])
        return found.group() if found else "\\"

    @property
    def spaced(self) -> str:
        """The line `key:value` as `key: value`; empty where it is something else."""
        glued = re.match(r"([\w.-]+):((?!//)\S.*)", excerpt(self.line_of(self.began).strip()))
        return f"{glued[1]}: {glued[2]}" if glued else ""

    @property
    def has_tab(self) -> bool:
        line = self.line_of(self.at)
        return "\t" in line[: len(line) - len(line.lstrip())]

    @property
    def after_value(self) -> bool:
        return re.search(r"[\"'\]}]\s*$", self.before) is not None

    @property
    def after_key(self) -> bool:
        return re.search(r":\s|^\s*[\"'].*[\"']\s*$", self.before) is not None

    @property
    def has_long_key(self) -> bool:
        return self.at.column > _LONGEST_KEY and not re.search(r":\s", self.before)


def explain(error: yaml.MarkedYAMLError, text: str) -> Problem:
    """The problem, with line, column and remedy, that `error` reports about `text`."""
    at = error.problem_mark or error.context_mark
    if at is None:
        return Problem(f"this is not valid YAML: {error}")
    fault = _Fault(text, at, error.context_mark or at)
    complaint = f"{error.context or ''}; {error.problem or ''}"
    for pattern, applies, message, hint in _RULES:
        if re.search(pattern, complaint) and applies(fault):
            mark = fault.began if message.startswith("<") else fault.at
            return _say(fault, mark, message.removeprefix("<").format(f=fault), hint.format(f=fault))
    return _say(fault, at, f"this is not valid YAML: {complaint.strip('; ')}", "Check this line and the one above it.")


def _say(fault: _Fault, mark: Any, message: str, hint: str) -> Problem:
    line = excerpt(fault.line_of(mark).strip(), 200)
    shown = {"value": line} if line else {}
    return Problem(message, hint=hint, line=mark.line + 1, column=mark.column + 1, **shown)


def _always(_: _Fault) -> bool:
    return True


_DIRECTIVE = (
    "a line that begins with '%' is a YAML directive, and this one cannot be used",
    "Remove the line that begins with '%', or put '---' on the line after it.",
)
_RULES: tuple[tuple[str, Callable[[_Fault], bool], str, str], ...] = (
    ("quoted scalar; found unexpected", _always,
     "<the quote {f.sign} opened here is not closed {f.unclosed}", "Add the closing {f.sign} where the value ends."),
    ("quoted scalar", _always, "'{f.escape}' is not an escape that double quotes allow",
     "Write \\\\ for a backslash, put the text in single quotes, or write a special character as itself."),
    ("", lambda f: f.has_tab, "this line is indented with a tab; YAML is indented with spaces only",
     "Replace every tab at the start of a line by spaces, two per level."),
    ("", lambda f: f.character == "\t", "a tab stands where YAML wants a space", "Replace the tab by a space."),
    ("expected '?<document start>", lambda f: f.text.lstrip().startswith("%"), *_DIRECTIVE),
    ("expected '?<document start>", _always, "this line does not belong to what stands above it",
     "Give all top-level keys the same indentation, and put text with special characters in quotes."),
    ("cannot start any token", _always, "an unquoted value cannot begin with '{f.character}'",
     "Put the value in quotes: '{f.rest}'."),
    ("mapping values are not allowed", lambda f: f.has_long_key,
     f"the text in front of this ':' is longer than {_LONGEST_KEY} characters",
     "Shorten the key, or check for a missing line break."),
    ("mapping values are not allowed", lambda f: f.after_key,
     "an unquoted value cannot contain ': ', and one line holds one key",
     "Put the whole value in quotes, or move what follows to a line of its own."),
    ("mapping values are not allowed", _always,
     "a key cannot start here, because the line above is not finished or has a value already",
     "Check the indentation of both lines, and that every key is followed by ': '."),
    ("expected ':'", lambda f: bool(f.spaced), "<there is no space after the ':'",
     "Write '{f.spaced}', with a space after the colon."),
    ("expected ':'", _always, "<this line has no ': '",
     "Write 'key: value'; if the line continues the value above, indent it further than that value's key."),
    ("parsing a block mapping", lambda f: f.after_value, "'{f.rest}' follows a value that has already ended",
     "Put the whole value in quotes, with '' for a ' inside it; also look for a quote left open further up."),
    ("parsing a block mapping", lambda f: f.character == ":", "there is no key in front of this ':'",
     "Write 'key: value'."),
    ("parsing a block mapping", lambda f: re.match(r"-(\s|$)", f.rest) is not None,
     "a list item stands where the mapping that {f.start} expects a key",
     "Align the '-' with the other items of its list, or give the list a key."),
    ("parsing a block mapping", lambda f: bool(f.before.strip()), "'{f.rest}' cannot stand here",
     "Put the whole value in quotes if it is text."),
    ("parsing a block mapping", _always, "the indentation of this line matches no key of the mapping that {f.start}",
     "Give it the same indentation as the keys it belongs to."),
    ("parsing a block collection", _always,
     "this line stands among the items of the list that {f.start} and is not one",
     "Begin the line with '- ', or change its indentation to match what it belongs to."),
    ("sequence entries are not allowed", _always, "a list with '-' cannot start on the line of its key",
     "Put each '- item' on a line of its own below the key, or write [a, b]; quote the value if it is text."),
    ("mapping keys are not allowed", _always, "an unquoted value cannot begin with '? '", "Put the value in quotes."),
    ("parsing a flow (sequence|mapping)", lambda f: f.at.line == f.began.line,
     "expected ',' or '{f.closing}' before {f.stopped}",
     "Add the missing '{f.closing}' or ','; put text that contains any of [ ] {{ }} , : # in quotes."),
    ("parsing a flow (sequence|mapping)", _always, "<the '{f.sign}' opened here is not closed: {f.reached}",
     "Add the missing '{f.closing}' or ','; put text that contains any of [ ] {{ }} , : # in quotes."),
    ("node content", lambda f: bool(f.character.strip()), "expected a value before '{f.character}'",
     "Add the missing value, or put the text in quotes if the character belongs to it."),
    ("node content", _always, "expected a value before the end of the line", "Add the missing value."),
    ("scanning an? alias", _always, "<an unquoted '*' starts an alias, and what follows is not a name",
     "Put the value in quotes: '{f.begun}'."),
    ("scanning an? anchor", _always, "<an unquoted '&' starts an anchor, and what follows is not a name",
     "Put the value in quotes: '{f.begun}'."),
    ("(scanning|parsing) a tag|tag handle", _always,
     "<an unquoted '!' starts a tag, and this is not one that is known here",
     "Put the value in quotes if it is text, otherwise remove the tag."),
    ("scanning a block scalar", _always,
     "only '-', '+' or a digit from 1 to 9 may follow '|' or '>' on the same line",
     "Start the text on the next line, indented; put the value in quotes if '|' or '>' belongs to it."),
    ("(?i)directive|incompatible YAML", _always, *_DIRECTIVE),
)  # fmt: skip
"""What the parser complains of, where it applies, and what to say instead; the first row that fits. A message that
begins with `<` is about the place where the thing being read began, others about where reading stopped."""
