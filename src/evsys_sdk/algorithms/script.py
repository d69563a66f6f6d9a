"""A training loop in a file, as a recipe: `algorithm: { kind: script, params: { file: loop.py } }`.

    # loop.py, which also runs directly: python loop.py
    with evsys_sdk.record("my-loop", model="tiny", backend="mock") as experiment:
        for run in experiment.runs():
            for step in run.steps(100): ...

The file runs in the arm's process, as from the command line. `record` gives it the arm's run; the config sets arms,
seeds, launcher, time limit and budget.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, ClassVar

from pydantic import Field

from ..errors import ConfigError, Problem
from ..paths import in_project
from ..protocols import AlgorithmTraits, RunContext, RunResult
from .loop_run import LoopConfig, LoopRun

type TakeRun = Callable[[LoopRun], None]

INTERACTIVE = "(interactive)"
"""File name of a loop typed in a notebook, a shell, or with `python -c`."""

_current: list[LoopRun] = []
_takers: list[TakeRun] = []


class Script:
    """A custom training loop in a file."""

    name: ClassVar[str] = "script"

    class Config(LoopConfig):
        """Parameters of `script`."""

        file: str = Field(min_length=1)
        """The file, relative to the project root."""
        sha256: str | None = None
        """Hash of its content when recorded; other content is another experiment."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    @classmethod
    def check_params(cls, params: Any) -> None:
        """Refuse a missing file or invalid Python."""
        if params.file == INTERACTIVE and _takers:
            return
        path = in_project(params.file)
        try:
            compile(path.read_bytes(), str(path), "exec")
        except (OSError, SyntaxError, ValueError) as error:
            hint = "Name a Python file, relative to the project root."
            raise ConfigError(Problem(f"the loop cannot be read: {error}", "file", params.file, hint)) from None

    def traits(self) -> AlgorithmTraits:
        return AlgorithmTraits(lora_rank=self.cfg.lora_rank)

    def train(self, ctx: RunContext) -> RunResult:
        """Run the loop: the one running in this process, or the one in the file."""
        run = LoopRun(ctx, self.cfg)
        try:
            if _takers:
                _takers[-1](run)
            else:
                with _pushed(_current, run):
                    self._execute()
            return run.finish()
        finally:
            run.close()

    def _execute(self) -> None:
        path = in_project(self.cfg.file).resolve()
        before = (sys.argv, list(sys.path))
        sys.argv = [str(path)]
        sys.path.insert(0, str(path.parent))  # as Python does for a script
        try:
            runpy.run_path(str(path), run_name="__main__")
        finally:
            sys.argv, sys.path[:] = before


def current_run() -> LoopRun | None:
    """The run whose script is executed in this process."""
    return _current[-1] if _current else None


@contextmanager
def taking_runs(take: TakeRun) -> Generator[None]:
    """Pass runs of scripts to a loop already running in this process; `take` returns when it has trained."""
    with _pushed(_takers, take):
        yield


@contextmanager
def _pushed[T](stack: list[T], item: T) -> Generator[None]:
    stack.append(item)
    try:
        yield
    finally:
        stack.remove(item)
