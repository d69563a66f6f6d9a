"""The exceptions of the SDK.

    EvsysError
    ├── ConfigError            (ValueError)    a YAML file or config, all problems at once
    ├── UnknownNameError       (KeyError)      a registry has no such name
    ├── DuplicateNameError     (ValueError)    a registry name is taken by another class
    ├── MissingExtraError      (ImportError)   a built-in needs an optional dependency
    ├── DataError              (ValueError)    a row, a file of rows or a store path
    ├── WorkspaceError         (RuntimeError)  a cached dataset or benchmark
    ├── BackendError           (RuntimeError)  a backend refused or failed an operation
    ├── TrainingError          (RuntimeError)  a run stopped itself, with a diagnosis
    ├── EvalError              (ValueError)    a verifier or a metric that has no score to give
    ├── UserCodeError          (RuntimeError)  code of the project left its process, or did not return in time
    ├── EvsysAuthError         (RuntimeError)  credentials are missing or refused
    └── DashboardClientError   (RuntimeError)  a dashboard refused a record or cannot be reached

Each message names the place, the value and the remedy. The command line prints it without a traceback and exits
with `exit_code`. All of them survive pickling, because arms run in other processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from .redact import redact

if TYPE_CHECKING:
    from traceback import FrameSummary


class _Missing(Enum):
    MISSING = "missing"  # an enum member keeps its identity after pickling


MISSING: Final = _Missing.MISSING
"""Means "no value", so that `None` can be reported as a value."""

_LONGEST_VALUE = 120
_LONGEST_MESSAGE = 20_000
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"} | {
    code: f"\\u{code:04x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
"""Control characters, and characters that change the direction of text in terminals."""


def closest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name closest to `name`; None if none is similar."""
    import difflib  # here, because errors.py is on the start-up path of every command

    by_folded = {candidate.casefold(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.casefold(), list(by_folded), n=1, cutoff=cutoff)
    return by_folded[matches[0]] if matches else None


def suggest(name: str, known: Iterable[str]) -> str:
    """`Did you mean 'sft'?`; empty if no known name is similar."""
    guess = closest(name, known)
    return f"Did you mean '{guess}'?" if guess else ""


def show(value: object) -> str:
    """`value` for an error message: on one line, shortened and redacted."""
    text = repr(redact(value))
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}… ({len(text)} characters)"


def clean(text: str) -> str:
    """A message for terminals and records, with visible control characters and a limited length."""
    if len(text) > _LONGEST_MESSAGE:
        half, left_out = _LONGEST_MESSAGE // 2, len(text) - _LONGEST_MESSAGE
        text = f"{text[:half]} … {left_out} characters left out … {text[-half:]}"
    return text if text.isprintable() else text.translate(_CONTROL)


def place_in_user_code(error: BaseException) -> str:
    """The place in user code that raised an error, as `folder/file.py:12`; empty without one."""
    import os

    frame = _frame_in_user_code(error)
    if frame is None:
        return ""
    near = os.path.relpath(frame.filename)
    return f"{frame.filename if near.startswith('..') else near}:{frame.lineno}"


def blame_user_code(error: BaseException) -> str:
    """The place in user code with the failed expression, as ``folder/file.py:12: `row["answer"]` ``."""
    import linecache

    frame, place = _frame_in_user_code(error), place_in_user_code(error)
    if frame is None or frame.lineno is None:
        return place
    line = linecache.getline(frame.filename, frame.lineno).rstrip("\n").encode()  # columns count bytes
    is_one_line = frame.end_lineno == frame.lineno
    part = line[frame.colno : frame.end_colno] if is_one_line else line
    text = (part.strip() or line.strip()).decode(errors="replace")
    return place if not text or text.startswith("raise ") else f"{place}: `{text}`"


def _frame_in_user_code(error: BaseException) -> FrameSummary | None:
    """The innermost frame outside of this package, Python and installed packages."""
    import os
    import sys
    import traceback

    others = (os.path.dirname(__file__), sys.prefix, sys.base_prefix, os.path.dirname(os.__file__))
    not_theirs = tuple(os.path.join(folder, "") for folder in others)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if os.path.isabs(frame.filename) and not frame.filename.startswith(not_theirs):
            return frame
    return None


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a config, with its place and remedy."""

    message: str
    path: str = ""
    """Dotted path into the config, e.g. `run.algorithm.kind`."""
    value: Any = MISSING
    hint: str = ""
    """The remedy, as a sentence."""
    file: str | None = None
    line: int | None = None
    column: int | None = None

    @property
    def _shown(self) -> Any:
        """The value, redacted if its path names a secret."""
        return redact(self.value, self.path.rpartition(".")[2])

    def located(self, *, file: str | None, line: int | None = None, column: int | None = None) -> Problem:
        return replace(self, file=self.file or file, line=self.line or line, column=self.column or column)

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        head = ": ".join(part for part in (where, self.path) if part)
        got = "" if self.value is MISSING else f" (got {show(self._shown)})"
        tail = f" {self.hint}" if self.hint else ""
        sentence = f"{self.message.rstrip('.')}{got}.{tail}"
        return clean(f"{head}: {sentence}" if head else sentence)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form printed under `--json`."""
        fields: dict[str, Any] = {"message": clean(self.message), "path": self.path, "hint": self.hint}
        fields |= {"file": self.file, "line": self.line, "column": self.column}
        if self.value is not MISSING:
            fields["value"] = self._shown if _is_json_scalar(self._shown) else show(self._shown)
        return fields


def _is_json_scalar(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)  # JSON has no infinity
    return isinstance(value, str | int | None)


class EvsysError(Exception):
    """Base of every error the SDK raises on purpose."""

    exit_code = 1

    def __str__(self) -> str:  # KeyError would show its argument in quotes
        return clean(str(self.args[0])) if self.args else type(self).__name__

    def to_dict(self) -> dict[str, Any]:
        """The JSON form printed under `--json`."""
        return {"error": type(self).__name__, "message": str(self)}


class ConfigError(EvsysError, ValueError):
    """An invalid config, with all its problems."""

    def __init__(self, problems: Sequence[Problem] | Problem | str) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "problems": [problem.to_dict() for problem in self.problems]}


class UnknownNameError(EvsysError, KeyError):
    """A registry has no extension with this name."""


class DuplicateNameError(EvsysError, ValueError):
    """Two classes were registered under the same name."""


class MissingExtraError(EvsysError, ImportError):
    """An optional dependency is not installed; the message says how to install it."""

    def __init__(self, what: str, extra: str) -> None:
        # Both arguments, because pickle calls the class with these.
        super().__init__(what, extra)
        self.what, self.extra = what, extra

    def __str__(self) -> str:
        return f"{self.what} needs the extra '{self.extra}'. {install_hint(self.extra)}"


class DataError(EvsysError, ValueError):
    """A row, a file of rows or a store path cannot be used."""


class WorkspaceError(EvsysError, RuntimeError):
    """A cached dataset or benchmark is missing, half-written or altered."""


class BackendError(EvsysError, RuntimeError):
    """A backend refused an operation or failed while doing it."""


class TrainingError(EvsysError, RuntimeError):
    """A run stopped itself; the message is the diagnosis."""


class EvalError(EvsysError, ValueError):
    """A verifier or a metric cannot compute a score, which must not count as a bad score."""


class UserCodeError(EvsysError, RuntimeError):
    """Code of the project ended the process in which it was called, or did not return in time."""


class EvsysAuthError(EvsysError, RuntimeError):
    """Credentials are missing or were refused."""


class DashboardClientError(EvsysError, RuntimeError):
    """A dashboard refused a request, or did not answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message, status)
        self.status = status
        """The HTTP status; None without an answer."""


def install_hint(extra: str) -> str:
    """How to install an optional dependency, as a sentence."""
    return f"Install it with: pip install 'evsys-sdk[{extra}]'"


def problems_of(error: EvsysError, path: str, remedy: str = "") -> list[Problem]:
    """An error as problems at `path`; its last sentence is the remedy, or `remedy` if it has only one."""
    if isinstance(error, ConfigError):
        return [
            replace(problem, path=_below(path, problem.path), hint=problem.hint or remedy) for problem in error.problems
        ]
    text = str(error).rstrip(".")
    if isinstance(error, UnknownNameError) or "; did you mean" in text:
        message, _, hint = text.partition("; " if "; did you mean" in text else ". ")
    else:
        message, _, hint = text.rpartition(". ")
    if not message:
        message, hint = hint, remedy
    ends = "" if not hint or hint.endswith(("?", "!", ".")) else "."
    return [Problem(message, path=path, hint=f"{hint[:1].upper()}{hint[1:]}{ends}")]


def _below(path: str, inner: str) -> str:
    """The full path of a problem whose path is relative to `path`, or repeats its end."""
    if not inner or path == inner or path.endswith(f".{inner}"):
        return path
    return f"{path}.{inner}" if path else inner
