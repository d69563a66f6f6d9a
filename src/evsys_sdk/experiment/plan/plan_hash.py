"""What was planned, in one word: who launches by it launches what was checked and priced, or nothing."""

from __future__ import annotations

from pathlib import Path

from ..._version import __version__
from ...config import ExperimentConfig
from ...errors import ConfigError, Problem, show
from ...record.evidence import hash_value
from ..arms.project_code import ProjectCode

_DIGITS = 16


def hash_plan(config: ExperimentConfig) -> str:
    """Changes with the config, its budget, the project's registered code, and the version of the SDK."""
    code = {name: hash_value(_read(file)) for name, file in ProjectCode.of_this_process().modules}
    return hash_value({"config": config.model_dump(mode="json"), "code": code, "sdk": __version__})[:_DIGITS]


def refuse_other_plan(config: ExperimentConfig, expected: str) -> None:
    """Refuse to continue if the experiment is not the one that was planned."""
    if hash_plan(config) != expected:
        message = f"this is not the plan {show(expected)}: the config, the project's code or the SDK changed since"
        raise ConfigError(Problem(message, hint="Plan it again, look at what it takes, and launch by the new hash."))


def _read(file: str | None) -> str:
    if file is None:
        return ""
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
