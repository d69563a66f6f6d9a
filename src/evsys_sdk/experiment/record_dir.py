"""Choose the folder of an experiment: the latest one to resume or extend, or a new numbered one.

`record/` defines the files in it; `docs/record.md` describes them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..config import ExperimentConfig
from ..errors import ConfigError, DataError, Problem
from ..paths import in_project
from ..protocols import RunResult
from ..record import folders
from ..record.events import FORMAT, Kind
from ..record.flat_config import flatten_config
from ..record.layout import ExperimentFiles, RunFiles
from ..record.lock import lock_owner
from ..record.reader import ExperimentRecord
from ..record.runs import config_runs
from ..record.values import number, text
from ..redact import redact
from ..user_code import limit_user_code
from .arms.results import result_from_dict, result_to_dict

_MAY_CHANGE = ("budget", "max_concurrent_arms", "launcher", "arm_timeout_s", "arm_retries", "description", "callbacks")
"""Fields that may change when an experiment is resumed: they say how it is run, not what is trained."""
_RUN = r"(?:run|runs\[\d+\])"
_TRAINS_NOTHING = re.compile(
    r"metadata\.(?!hypothesis\b|success_metric\b)|log_store\b|parent_experiment_id$"
    rf"|{_RUN}\.(?:eval|tags)\b"
    rf"|{_RUN}\.algorithm\.params\.(?:save_every|save_at_fractions|eval_every|keep_checkpoints)\b"
)
"""What else may change with `--resume`: how runs are scored and saved, but not the claim."""
_MOST_NAMED = 6


@dataclass(frozen=True, slots=True)
class ExperimentDir:
    """The folder of one attempt at an experiment."""

    path: Path
    resumed: bool = False
    """Whether an earlier attempt continues in it."""
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    """The config of this attempt; written by the owner of the lock."""
    changed: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """Dotted path -> old and new value, for each field that differs from the recorded config."""
    extended: bool = False
    """Whether seeds or arms are added to a finished experiment."""

    def write_config(self) -> None:
        """Record the config of this attempt."""
        folders.write_config(self.path, self.config)

    def run_dir(self, arm: str) -> Path:
        return ExperimentFiles(self.path).run(arm).folder


def open_experiment_dir(config: ExperimentConfig, *, resume: bool = False, fresh: bool = False) -> ExperimentDir:
    """The latest folder if it is to be resumed, else a new numbered one.

    With `resume` the latest attempt must train the same; its scoring may differ. Without `resume` and `fresh`, an
    unfinished attempt with the same config is resumed, so that the same command continues after a crash.
    """
    base = in_project(config.output_dir) / config.name
    resolved = redact(config.model_dump(mode="json"))
    latest = folders.latest_attempt(base)
    if latest is not None and not fresh:
        record = ExperimentRecord(latest)
        changes = _differences(_complete(record.load()), resolved)
        changed = [path for path in changes if re.split(r"[.\[]", path)[0] not in _MAY_CHANGE]
        if resume and (other := [key for key in changed if not _TRAINS_NOTHING.match(key)]):
            hint = "Change it back to resume, or run without --resume to start a new attempt."
            named = ", ".join(other[:_MOST_NAMED]) + (" …" if len(other) > _MOST_NAMED else "")
            raise ConfigError(Problem(f"the config differs from the one in {latest} in: {named}", hint=hint))
        changed += _find_changed_content(latest, config, resume=resume)
        is_running = lock_owner(latest) is not None  # two concurrent starts are two attempts
        if resume or not (changed or is_running or record.is_finished):
            _refuse_later_format(record)
            return ExperimentDir(latest, resumed=True, config=resolved, changed=changes)
    return ExperimentDir(folders.create_attempt(base, resolved), config=resolved)


def extend_experiment_dir(config: ExperimentConfig) -> ExperimentDir:
    """The latest folder, whose finished experiment gets more seeds or arms; nothing else may change."""
    base = in_project(config.output_dir) / config.name
    latest = folders.latest_attempt(base)
    if latest is None:
        raise ConfigError(Problem(f"there is no experiment in {base} to extend", hint="Run it without --extend first."))
    if config.search is not None or config.planned_looks:
        what = "search" if config.search is not None else "until"
        hint = "It decides itself about seeds and arms: start a new experiment."
        raise ConfigError(Problem(f"an experiment with `{what}` cannot be extended", what, hint=hint))
    record = ExperimentRecord(latest)
    _refuse_later_format(record)
    old, new = _complete(record.load()), redact(config.model_dump(mode="json"))
    changes = _differences(_without_runs(old), _without_runs(new))
    wrong = [path for path in changes if re.split(r"[.\[]", path)[0] not in (*_MAY_CHANGE, "n_repeats")]
    runs = {text(run.get("name")): run for run in config_runs(new)}
    for run in config_runs(old):
        wrong += [f"run '{text(run.get('name'))}'"] if runs.get(text(run.get("name"))) != run else []
    if wrong or (number(new.get("n_repeats")) or 0) < (number(old.get("n_repeats")) or 0):
        named = ", ".join(wrong[:_MOST_NAMED]) or "n_repeats"
        hint = "--extend only adds seeds (a larger n_repeats) and runs. Change it back, or start a new experiment."
        raise ConfigError(Problem(f"the config differs from the one in {latest} in: {named}", hint=hint))
    added = [name for name in runs if name not in {text(run.get("name")) for run in config_runs(old)}]
    grown = bool(added) or "n_repeats" in changes
    # A killed extension continues; it was registered when it began.
    if record.is_finished and not grown:
        hint = "Raise n_repeats, or add runs."
        raise ConfigError(Problem(f"the config adds neither seeds nor runs to {latest}", hint=hint))
    if grown and not record.is_finished and not _is_extending(record):
        hint = "Run it without --extend and with its own config until it is finished, and extend it then."
        raise ConfigError(Problem(f"the experiment in {latest} is not finished", hint=hint))
    if added:
        changes["runs"] = [[text(run.get("name")) for run in config_runs(old)], list(runs)]
    extended = grown and record.is_finished
    return ExperimentDir(latest, resumed=True, config=new, changed=changes if extended else {}, extended=extended)


def _is_extending(record: ExperimentRecord) -> bool:
    """Whether an extension has started and not ended."""
    turns = [event for event in record.events if event.kind == Kind.ENDED or event.get("extended") is True]
    return bool(turns) and turns[-1].kind != Kind.ENDED


def _without_runs(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in ("run", "runs")}


def _find_changed_content(folder: Path, config: ExperimentConfig, *, resume: bool) -> list[str]:
    """Rows and code that have changed since an arm was trained with them; an error with `resume`."""
    from .audit.identity import find_changed_content

    with limit_user_code("reading the rows to resume"):
        contents = find_changed_content(folder, config) if not ExperimentRecord(folder).is_finished or resume else []
    if contents and resume:
        hint = "Restore it to resume, or run without --resume to start a new attempt."
        raise ConfigError(Problem(f"{' and '.join(contents)} changed since {folder} was started", hint=hint))
    return contents


def write_result(run_dir: Path, result: RunResult, *, hparams: dict[str, Any]) -> None:
    """Write the result of a run."""
    folders.write_result(run_dir, result_to_dict(result), hparams=hparams)


def read_result(run_dir: Path) -> RunResult | None:
    """The result of a run, or None if it has not ended."""
    stored = folders.load_result(run_dir)
    try:
        return None if stored is None else result_from_dict(stored)
    except (KeyError, TypeError):
        path = RunFiles(run_dir).result
        raise DataError(f"{path}: this is not the result of a run. Remove it to run the arm again.") from None


def _refuse_later_format(record: ExperimentRecord) -> None:
    if record.format > FORMAT:
        hint = "Update evsys-sdk to continue it, or start a new attempt with --fresh."
        message = f"{record.folder} was written by a later version (format {record.format}, this one knows {FORMAT})"
        raise ConfigError(Problem(message, hint=hint))


def _differences(first: dict[str, Any], second: dict[str, Any]) -> dict[str, list[Any]]:
    """Dotted path -> both values, for each field in which two configs differ."""
    old, new = flatten_config(first), flatten_config(second)
    return {path: [old.get(path), new.get(path)] for path in sorted({*old, *new}) if old.get(path) != new.get(path)}


def _complete(recorded: dict[str, Any]) -> dict[str, Any]:
    """A recorded config with the defaults of newer fields; a config that no longer validates stays as it is."""
    try:
        return redact(ExperimentConfig.model_validate(recorded).model_dump(mode="json"))
    except ValidationError:
        return recorded
