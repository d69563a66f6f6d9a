"""Whether every verifier that rows name exists and takes their params; also in rows that a transform has made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from ...data.rows import from_dict
from ...data.types import HarborTask, InProcessVerifier
from ...errors import EvsysError, Problem, problems_of
from ...eval.verifier import build_verifier
from ...eval.verifiers.python_tests import check_tests
from ...protocols import Row
from .sources import PulledRows


def verifier_problems(pulled: PulledRows, place: str) -> Iterator[Problem]:
    """What is wrong with the verifiers of tasks, each once, at the first row that names it."""
    seen: set[str] = set()
    for index, row in enumerate(pulled.rows):
        given: Any = row.get("verifier")
        key = _name_of(given)
        if key is None or key in seen:
            continue
        seen.add(key)
        try:
            _build(row)
        except EvsysError as error:
            for problem in problems_of(error, place, "Correct the name in the rows, or register the verifier."):
                yield Problem(f"{pulled.where(index)}: {problem.message}", place, hint=problem.hint)


def _name_of(verifier: Any) -> str | None:
    """The same for verifiers that are built in the same way."""
    if not isinstance(verifier, dict):
        return None
    return repr({key: value for key, value in cast("Row", verifier).items() if key != "expected"})


def _build(row: Row) -> None:
    task = from_dict({key: row[key] for key in ("task_id", "instruction", "verifier") if key in row})
    assert isinstance(task, HarborTask)
    build_verifier(task.verifier)
    if isinstance(task.verifier, InProcessVerifier) and task.verifier.fn_name == "python_tests":
        check_tests(task.verifier.expected)
