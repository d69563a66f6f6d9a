"""Recompute metrics from rewards, and rewards from answers.

    with Rechecker(["mine.py"]) as recheck:
        recheck.judge(task, text)            the reward of an answer
        recheck.measure("pass@1", samples)   the metric of these samples

The project's own code runs in a separate process: in the process of the audit it could replace the checks. It does not
receive the recorded values.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...data.chat import text_of
from ...data.rows import from_dict, to_dict
from ...data.types import HarborTask, InProcessVerifier
from ...errors import EvsysError
from ...eval.metric import build_metric
from ...eval.samples import ScoredSample, TaskSamples
from ...eval.verifier import VerifierInput, build_verifier
from ...processes import Relay, die_with_parent, kill_group, pass_on
from ...record.evidence import hash_conclusion_page
from ...record.flat_config import flatten_config
from ...record.folders import read_conclusion_page
from ...registry import get_verifier, registry
from ...rollouts.rollout import opening
from ...settings import import_project_code
from ...training.blocking import run_blocking
from ...user_code import default_limit_s
from .shadow import make_shadow

if TYPE_CHECKING:
    from ..conclusion import Conclusion

_WORDS = re.compile(r"(?:[-+](?=\d))?[^\W_]+")
NON_REPLAYABLE_VERIFIERS = frozenset({"llm_judge", "e2b", "harbor_tests", "python_tests"})
"""Verifiers that cost money or a sandbox."""
TOLERANCE = 1e-6
"""Absolute tolerance of recomputed values."""
_ABOUT_OTHERS = {"looks", "identity", "deviations", "threats", "next", "usd"}
"""Parts of a conclusion that depend on prices, other experiments or the course of the experiment."""
_MOST_OUTPUT = 1_000_000
"""Maximum output of the project's code in bytes."""


class Rechecker(ExitStack):
    """Recomputes rewards and metrics; those of the project's own code in a process that imports the project."""

    def __init__(self, imports: Sequence[str] | None = (), *, during: tuple[float, float] = (0.0, 0.0)) -> None:
        """`imports` names code in addition to the project's settings; with None, no code of the project runs.

        Files written into the project `during` the experiment are hidden from its code.
        """
        super().__init__()
        self._imports, self._during = list(imports or ()), during
        self._project: subprocess.Popen[str] | None = None
        self._gave_up = imports is None
        self.failure = ""
        """Description of the failure if the process of the project's code ended or timed out."""

    def judge(self, task: HarborTask, answer: str) -> float | None:
        """Compute the reward of an answer; None if its verifier cannot be run in an audit."""
        what = task.verifier
        if not isinstance(what, InProcessVerifier) or what.fn_name in NON_REPLAYABLE_VERIFIERS:
            return None
        if what.fn_name not in registry("verifier"):
            return self._ask({"task": to_dict(task), "answer": answer})
        if not is_deterministic(what.fn_name):
            return None
        messages = [*opening(task), {"role": "assistant", "content": answer}]
        given = VerifierInput(prompt=text_of(task.instruction), completion=answer, messages=messages, task=task)
        with suppress(EvsysError):
            return run_blocking(lambda: build_verifier(what)(given)).reward
        return None

    def measure(self, name: str, samples: list[TaskSamples]) -> float | None:
        """Compute a metric of samples; None if it needs other inputs or a sample failed."""
        if any(one.failed for task in samples for one in task.samples):
            return None
        if name not in registry("metric"):
            return self._ask({"metric": name, "samples": [asdict(task) for task in samples]})
        with suppress(EvsysError):
            metric = build_metric(name)
            return metric(samples).value if metric.inputs == frozenset({"task_rewards"}) else None
        return None

    def _ask(self, question: dict[str, Any]) -> float | None:
        """Send a question to the process of the project's code; None if it has no value or has failed."""
        if self._gave_up:
            return None
        self._project = self._project or self._start()
        assert self._project.stdin is not None
        assert self._project.stdout is not None
        with suppress(OSError):  # the process may have ended
            self._project.stdin.write(json.dumps(question) + "\n")
            self._project.stdin.flush()
        limit_s = default_limit_s()
        # Each question has one line as answer, so that no line stays in the buffer, where `select` misses it.
        ready = select.select([self._project.stdout], [], [], limit_s)[0]
        try:
            return json.loads(self._project.stdout.readline() if ready else "")["value"]
        except (ValueError, TypeError, KeyError):
            why = "ended its process" if ready else f"took longer than {limit_s:g} s"
            self.failure = f"the project's code {why} instead of judging an answer again"
            self._gave_up = True  # a late answer would be read as the next one
            return None

    def _start(self) -> subprocess.Popen[str]:
        # -P keeps the project's folder off sys.path, where a file could shadow a module of the SDK or of Python.
        command = [sys.executable, "-P", "-m", __spec__.name, *self._imports]
        folder = self.enter_context(make_shadow(Path.cwd(), *self._during))
        pipe: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        project = subprocess.Popen(command, cwd=folder, **pipe, text=True, encoding="utf-8", process_group=0)
        self.callback(project.communicate)
        self.callback(kill_group, project.pid)
        assert project.stderr is not None
        pass_on(project.stderr.fileno(), Relay(_MOST_OUTPUT))
        return project


def is_deterministic(verifier: str) -> bool:
    """Whether a verifier is deterministic: True unless it declares `deterministic = False`."""
    try:
        return bool(getattr(get_verifier(verifier), "deterministic", True))
    except EvsysError:
        return True


def compare_conclusions(stored: Conclusion, drawn: Conclusion) -> Iterator[str]:
    """Yield differences of a stored and a recomputed conclusion; for other rules, only of verdict and best arm."""
    stated, found = (flatten_config(_leave_out(one.to_dict())) for one in (stored, drawn))
    same_rules = stored.schema_version == drawn.schema_version
    for name in sorted(stated.keys() | found.keys()) if same_rules else ("verdict", "best_arm"):
        one, other = stated.get(name), found.get(name)
        is_close = (
            isinstance(one, float)
            and isinstance(other, float)
            and math.isclose(one, other, rel_tol=1e-4, abs_tol=TOLERANCE)
        )
        if one != other and not is_close:
            yield f"conclusion.json has {name} {one}, and the record gives {other}"


def _leave_out(value: Any) -> Any:
    """Remove `_ABOUT_OTHERS` from a conclusion, and convert lists to dicts, so that each value has a key."""
    if isinstance(value, list):
        value = dict(enumerate(cast("list[Any]", value)))
    if isinstance(value, dict):
        return {key: _leave_out(one) for key, one in cast("dict[Any, Any]", value).items() if key not in _ABOUT_OTHERS}
    return value


def find_edited_page(folder: Path, known: str, stored: Conclusion | None) -> Iterator[str]:
    """Report a conclusion.md whose words differ from conclusion.json; a formatter may change spaces and marks."""
    if known in ("", hash_conclusion_page(folder)) or stored is None:
        return
    from ..conclusion.markdown import as_markdown

    expected = _WORDS.findall(as_markdown(stored))
    if _WORDS.findall(read_conclusion_page(folder) or "") != expected:
        yield "conclusion.md is not the page that was written with it"


def _answer_for_project(imports: Sequence[str]) -> None:
    """Import the project's code and answer questions from stdin, one line each."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # redirect prints of the project to stderr
        try:
            import_project_code(imports)
        except EvsysError as error:  # if it is missing on this machine, so are its verifiers
            if isinstance(error.__cause__, SystemExit):
                return
        recheck = Rechecker(None)  # now all of the project's code is registered here
        for line in sys.stdin:
            question = json.loads(line)
            if "task" in question:
                value = recheck.judge(cast("HarborTask", from_dict(question["task"])), question["answer"])
            else:
                samples = [[ScoredSample(**one) for one in task["samples"]] for task in question["samples"]]
                names = [task["task_id"] for task in question["samples"]]
                value = recheck.measure(question["metric"], [*map(TaskSamples, names, samples)])
            answers.write(json.dumps({"value": value}) + "\n")
            answers.flush()


if __name__ == "__main__":
    die_with_parent()
    _answer_for_project(sys.argv[1:])
