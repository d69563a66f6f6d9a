"""The check before a run: report all problems that can be found before money or compute is spent.

`evsys validate --deep`, `evsys plan` and the start of `evsys run` use the same check. Rows are read for a limited
time, and parts that several arms share are checked once.

    checked = check_file("config.yaml")        # raises ConfigError with every problem, at its line
    checked.config, checked.warnings
    report = check_config(config)              # the same for a config object
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...config import ExperimentConfig
from ...config.checks.deep import deep_problems
from ...errors import EvsysError, Problem
from ...paths import in_project
from ...record.folders import find_attempts
from ...user_code import limit_user_code
from ..arms.arm import expand_arms, folder_problems
from ..benchmark_plan import benchmark_problems, is_priced, run_eval_problems
from ..hypothesis import claim_problems
from .meaning import meaning_problems
from .meaning.context import Context
from .places import Adapt, callback_problems, load_checked
from .report import CheckReport
from .runs import RunChecks
from .scores import collect_reported, score_problems

__all__ = ["CheckReport", "Checked", "check_config", "check_file"]

_LONGEST_CHECK_S = 600.0
"""Time limit of a check that calls user code, if the config sets no `arm_timeout_s`."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A config without problems, and its warnings."""

    config: ExperimentConfig
    warnings: tuple[str, ...] = ()


def check_file(path: str | Path, *, dry: bool = False, adapt: Adapt | None = None, resumes: bool = False) -> Checked:
    """Load and check a config file; raise ConfigError with all problems and their lines.

    `adapt` applies command-line options to the config before the check. With `dry`, a backend that is not installed
    is no problem.
    """
    config, report = load_checked(path, partial(check_config, resumes=resumes), dry=dry, adapt=adapt)
    return Checked(config, tuple(str(one) for one in report.warnings))


def check_config(config: ExperimentConfig, *, kinds: bool = True, resumes: bool = False) -> CheckReport:
    """Check a config.

    With `kinds=False`, skip the check of kinds and their params. With `resumes`, skip the checks of meaning for an
    experiment that has started: its warnings were printed then.
    """
    config = config.expanded()
    with limit_user_code(f"checking experiment '{config.name}'", limit_s=config.arm_timeout_s or _LONGEST_CHECK_S):
        return _check(config, kinds, resumes)


def _check(config: ExperimentConfig, kinds: bool, resumes: bool) -> CheckReport:
    report = CheckReport()
    if kinds:
        report.add(deep_problems(config))
    checks: tuple[Callable[[], Iterable[Problem]], ...] = (
        lambda: folder_problems(expand_arms(config)),
        lambda: run_eval_problems(config),
        lambda: claim_problems(config),
        lambda: callback_problems(config),
        lambda: benchmark_problems(config.metadata, priced=_is_priced(config)),
    )
    for check in checks:
        with report.at(""):
            report.add(check())
    with tempfile.TemporaryDirectory(prefix="evsys-check-") as folder:
        runs = RunChecks(config, report, Path(folder))
        with limit_user_code("checking rows"):  # ends a process that a transform forked, before it removes the folder
            runs.check()
    report.add(score_problems(config, collect_reported(config, runs.algorithms)))
    has_started = bool(find_attempts(in_project(config.output_dir) / config.name))
    if not report.problems and not (resumes and has_started):
        refused, warned = meaning_problems(Context(config, runs.pulled, runs.clients))
        if has_started:  # it may finish
            refused, warned = [], [*refused, *warned]
        report.add(refused)
        report.warn(warned)
    return report


def _is_priced(config: ExperimentConfig) -> bool:
    with suppress(EvsysError):
        return is_priced(config)
    return True  # an unknown algorithm is reported elsewhere
