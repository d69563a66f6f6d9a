"""Which folder an experiment is run in: a new numbered one, or one that is taken up again until it is finished.

Names and format of everything in it belong to `record/`; `docs/record.md` shows the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from ..config import ExperimentConfig
from ..errors import ConfigError, DataError, Problem
from ..paths import in_project
from ..protocols import RunResult
from ..record import folders
from ..record.events import FORMAT
from ..record.layout import ExperimentFiles, RunFiles
from ..record.lock import lock_owner
from ..record.reader import ExperimentRecord
from ..redact import redact
from .arms.results import result_from_dict, result_to_dict

_MAY_CHANGE = ("budget", "max_concurrent_arms", "launcher", "arm_timeout_s", "arm_retries", "description", "callbacks")
"""Fields that say how an experiment is run rather than what it is; changing them does not make it another one."""
_RUN = r"(?:run|runs\[\d+\])"
_TRAINS_NOTHING = re.compile(
    r"metadata\.(?!hypothesis\b|success_metric\b)|log_store\b|parent_experiment_id$"
    rf"|{_RUN}\.(?:eval|tags)\b"
    rf"|{_RUN}\.algorithm\.params\.(?:save_every|save_at_fractions|eval_every|keep_checkpoints)\b"
)
"""What else may change where `--resume` asks for it: how runs are scored and saved. The claim may not: it was made."""
_MOST_NAMED = 6


@dataclass(frozen=True, slots=True)
class ExperimentDir:
    """One attempt at an experiment, on disk."""

    path: Path
    resumed: bool = False
    """Whether it was there before and is taken up again."""
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    """How it is run from now on; written by whoever has the folder to itself."""
    changed: list[str] = field(default_factory=list[str])
    """What of that is not as it was before, as dotted paths."""

    def write_config(self) -> None:
        """Note how it is run from now on, which may have changed."""
        folders.write_config(self.path, self.config)

    def run_dir(self, arm: str) -> Path:
        return ExperimentFiles(self.path).run(arm).folder


def open_experiment_dir(config: ExperimentConfig, *, resume: bool = False, fresh: bool = False) -> ExperimentDir:
    """The latest folder where it is to be taken up again, else a new numbered one.

    With `resume` the latest must train the same: how it is scored may have been corrected since. Without it and
    without `fresh`, one of the same config that was not finished is taken up, so that the same command after a crash
    goes on.
    """
    base = in_project(config.output_dir) / config.name
    resolved = redact(config.model_dump(mode="json"))
    latest = folders.latest_attempt(base)
    if latest is not None and not fresh:
        record = ExperimentRecord(latest)
        changed = _changes(record.load(), resolved)
        if resume and (other := [key for key in changed if not _TRAINS_NOTHING.match(key)]):
            hint = "Change it back to resume, or run without --resume to start a new attempt."
            named = ", ".join(other[:_MOST_NAMED]) + (" …" if len(other) > _MOST_NAMED else "")
            raise ConfigError(Problem(f"the config differs from the one in {latest} in: {named}", hint=hint))
        taken = lock_owner(latest) is not None  # whoever starts it twice at the same time wants it twice
        if resume or not (changed or taken or record.is_finished):
            _refuse_later_format(record)
            return ExperimentDir(latest, resumed=True, config=resolved, changed=_find_changes(record.load(), resolved))
    return ExperimentDir(folders.create_attempt(base, resolved), config=resolved)


def write_result(run_dir: Path, result: RunResult, *, hparams: dict[str, Any]) -> None:
    """Note how a run ended."""
    folders.write_result(run_dir, result_to_dict(result), hparams=hparams)


def read_result(run_dir: Path) -> RunResult | None:
    """The result a run ended with, if it has."""
    found = folders.load_result(run_dir)
    try:
        return None if found is None else result_from_dict(found)
    except (KeyError, TypeError):
        path = RunFiles(run_dir).result
        raise DataError(f"{path}: this is not the result of a run. Remove it to run the arm again.") from None


def _refuse_later_format(record: ExperimentRecord) -> None:
    if record.format > FORMAT:
        hint = "Update evsys-sdk to go on with it, or start a new attempt with --fresh."
        message = f"{record.folder} was written by a later version (format {record.format}, this one knows {FORMAT})"
        raise ConfigError(Problem(message, hint=hint))


def _changes(recorded: dict[str, Any], resolved: dict[str, Any]) -> list[str]:
    """The keys in which a recorded experiment is another one than this, as dotted paths."""
    return [key for key in _find_changes(recorded, resolved) if re.split(r"[.\[]", key)[0] not in _MAY_CHANGE]


def _find_changes(recorded: dict[str, Any], resolved: dict[str, Any]) -> list[str]:
    """The keys in which two configs differ, as dotted paths."""
    return list(_differences(_complete(recorded), resolved))


def _differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if one == other:
        return
    if isinstance(one, dict) and isinstance(other, dict):
        old, new = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif (
        isinstance(one, list)
        and isinstance(other, list)
        and len(cast("list[Any]", one)) == len(cast("list[Any]", other))
    ):
        for index, pair in enumerate(zip(cast("list[Any]", one), cast("list[Any]", other), strict=True)):
            yield from _differences(*pair, f"{path}[{index}]")
    else:
        yield path


def _complete(recorded: dict[str, Any]) -> dict[str, Any]:
    """A recorded config with the fields that have come since; one that is no config any more stays as it is."""
    try:
        return redact(ExperimentConfig.model_validate(recorded).model_dump(mode="json"))
    except ValidationError:
        return recorded
