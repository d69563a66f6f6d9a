"""The arms of an experiment (a run with one seed), read from the journal and from their folders."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .events import Event, Kind
from .jsonl_file import last_records
from .layout import ExperimentFiles, LogFiles, RunFiles
from .run_files.rollouts import read_rollouts
from .run_files.scores import metric_name
from .values import DICT, Object, items, number, part, read_json, read_lines, read_object, subfolders, text

PENDING, STARTED = "pending", "started"
"""Status of an arm that has not started, and of one that has started and not ended."""
SPEND = ("tokens_trained", "tokens_sampled", "usd", "wall_s", "gpu_s")
_SEED_SUFFIX = re.compile(r"__seed(\d+)$")

_RECENT_STEPS = 30
"""Steps over which the speed is averaged."""

type Points = list[tuple[float, float]]


@dataclass(frozen=TYPE_CHECKING)  # frozen for pyright only: creating a frozen instance takes four times as long
class RunRecord:
    """One run with one seed. Properties that the journal does not hold are read from its folder, once."""

    experiment: Path
    """The folder of the experiment."""
    name: str
    run: str
    seed: int | None = None
    status: str = PENDING
    """completed, failed or cancelled; `started` without a result, `pending` without a start."""
    error: str = ""
    unscored: str = ""
    """The reason for a missing score."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    spend: dict[str, float] = field(default_factory=dict[str, float])
    artifacts: dict[str, str] = field(default_factory=dict[str, str])
    findings: tuple[str, ...] = ()
    """Findings about its training, in sentences."""

    @cached_property
    def folder(self) -> Path:
        return self.experiment / self.name

    @property
    def files(self) -> RunFiles:
        return RunFiles(self.folder)

    @property
    def has_ended(self) -> bool:
        return self.status not in (PENDING, STARTED)

    @property
    def problem(self) -> str:
        """Why its result is unusable; empty if it is usable."""
        if self.status == "failed":
            return self.error or "it failed without a recorded reason"
        return self.unscored and f"unscored: {self.unscored}"

    @cached_property
    def result(self) -> Object | None:
        """The content of `run_result.json`; None if it is missing or damaged."""
        return read_object(self.files.result)

    @cached_property
    def starts(self) -> list[float]:
        """The times of its starts."""
        return [at for line in read_lines(self.files.starts) if (at := number(line.get("time"))) is not None]

    @cached_property
    def score_lines(self) -> list[Object]:
        """Every line of `scores.jsonl`, also lines that later ones replace."""
        return list(read_lines(self.files.scores))

    @property
    def config(self) -> Object | None:
        """Its config; None if it is missing or damaged."""
        return read_object(self.files.config)

    @cached_property
    def identity(self) -> Object | None:
        """Weights, code and packages; None if they were not recorded."""
        return read_object(self.files.identity)

    @property
    def datasets(self) -> list[Object]:
        """The data that it used, each with `source`, `rows` and `sha256`; empty if it was not recorded."""
        return [part(dataset) for dataset in items(read_json(self.files.datasets))]

    @property
    def benchmarks(self) -> list[Object]:
        """Its benchmarks, each with `name`, `split` and `id`; empty if they were not recorded."""
        return [part(benchmark) for benchmark in items(read_json(self.files.benchmarks))]

    def read_answers(self, benchmark: str, step: int) -> list[Object] | None:
        """The answers behind one scoring; None if they were not kept."""
        path = self.files.predictions(benchmark, step)
        return list(read_lines(path)) if path.is_file() else None

    @property
    def has_rollouts(self) -> bool:
        """Whether its training rollouts are recorded."""
        return self.files.logs.below(LogFiles.training.name).rollouts.is_file()

    def read_rollouts(self) -> Iterator[Object]:
        """Its training rollouts, oldest first; see `record/run_files/rollouts.py`."""
        return read_rollouts(self.files)

    @property
    def scores(self) -> Iterator[tuple[str, float, Object, Object]]:
        """Each metric of each scoring as (full name, step, scoring, metric); of repeated scorings, the last one."""
        return each_score(self.score_lines)

    @cached_property
    def checkpoints(self) -> list[Object]:
        """The lines of `checkpoints.jsonl`, oldest first."""
        return list(read_lines(self.files.checkpoints))

    @cached_property
    def logged(self) -> dict[str, Points]:
        """The points of every logged metric; of a repeated step, the last value."""
        points: dict[str, dict[float, float]] = {}
        source = next((path for path in self._metrics_files if path.is_file()), None)
        for line in read_lines(source) if source else ():
            step = number(line.get("step"))
            for name, raw in line.items() if step is not None else ():
                if name != "step" and (value := number(raw)) is not None:
                    points.setdefault(name, {})[step or 0.0] = value
        return {name: sorted(values.items()) for name, values in points.items()}

    @property
    def last_metrics(self) -> Object:
        """The last line of a training step; lines of scores are skipped."""
        names = ("loss", self.measure[0], "empty_batch")
        nothing: Object = {}
        return next(
            (line for line in last_records(self._metrics_files[0]) if any(name in line for name in names)), nothing
        )

    @property
    def step_seconds(self) -> float | None:
        """Mean seconds of its last steps; None if they were not recorded."""
        lines = itertools.islice(last_records(self.files.logs.timing), _RECENT_STEPS)
        timed = [(number(line.get("time/step_s")), number(line.get("time/build_s"))) for line in lines]
        seconds = [step + (build or 0.0) for step, build in timed if step is not None]
        return sum(seconds) / len(seconds) if seconds else None

    @property
    def latest_scores(self) -> dict[str, tuple[int, float]]:
        """The latest step and value of each scored metric, without baselines."""
        scores = (score for score in self.scores if score[2].get("split") != "baseline")
        ordered = sorted(scores, key=lambda score: score[1])
        latest = {metric: (int(step), number(score.get("value"))) for metric, step, _, score in ordered}
        return {metric: (step, value) for metric, (step, value) in latest.items() if value is not None}

    @property
    def total_steps(self) -> int | None:
        """Its planned number of steps; None if it is unknown."""
        total = number(self._progress.get("total_steps"))
        return None if total is None else int(total)

    @property
    def measure(self) -> tuple[str, str]:
        """The progress metric and its direction, `min` or `max`."""
        return text(self._progress.get("measure")) or "loss", text(self._progress.get("mode")) or "min"

    @cached_property
    def _progress(self) -> Object:
        return read_object(self.files.progress) or {}

    @property
    def _metrics_files(self) -> list[Path]:
        logs = self.files.logs
        return [logs.metrics, LogFiles(self.folder).metrics, logs.below(LogFiles.training.name).metrics]


def each_score(lines: Iterable[Object]) -> Iterator[tuple[str, float, Object, Object]]:
    """The metrics of scorings, sorted by metric and step; of repeated scorings, the last one."""
    latest: dict[tuple[str, float], tuple[Object, Object]] = {}
    for line in lines:
        split, name, step = text(line.get("split")), text(line.get("name")), number(line.get("step"))
        for short, score in part(line, "metrics").items() if step is not None else ():
            latest[metric_name(split, name, short), step or 0.0] = (line, part(score))
    for (metric, step), (line, score) in sorted(latest.items(), key=lambda entry: entry[0]):
        yield metric, step, line, score


def read_arms(folder: Path, config: Object, events: Sequence[Event], *, from_files: bool = False) -> list[RunRecord]:
    """Every arm; with `from_files`, results come from the arms' folders even if the journal has them."""
    names = [text(run.get("name")) for run in config_runs(config)]
    ended = {event.text("arm") for event in events if event.kind == Kind.ARM_ENDED}
    # The folders are only listed if the journal has no ended arm.
    folders = [RunFiles(folder / name) for name in sorted(subfolders(folder))] if from_files or not ended else []
    begun = [files.folder.name for files in folders if files.result.exists() or files.starts.exists()]
    guessed = {name: _guess_run(name, names) for name in begun}
    runs = _list_announced(events) or _expand_config(config, guessed)
    for event in events:
        if event.kind == Kind.RESUMED:  # arms that did not complete run again
            for run in runs.values():
                if run["status"] != "completed":
                    run["status"] = PENDING
        elif name := event.text("arm"):  # an arm may be missing in the announcement: racing adds seeds
            _apply(runs.get(name) or runs.setdefault(name, _guess_run(name, names)), event)
    runs |= {name: run for name, run in guessed.items() if name not in runs}
    records = {name: RunRecord(folder, name, **run) for name, run in runs.items()}
    return [run if name in ended and not from_files else _read_folder(run) for name, run in records.items()]


def config_runs(config: Object) -> list[Object]:
    """The runs of a resolved config, from `runs` or `run`."""
    runs = [run for run in items(config.get("runs")) if isinstance(run, DICT)]
    return runs or ([part(config, "run")] if part(config, "run") else [])


def plain_spend(spend: Mapping[str, Any]) -> dict[str, float]:
    """The known amounts of a spend."""
    return {name: value for name in SPEND if name in spend and (value := number(spend[name])) is not None}


def add_spend(*spends: Mapping[str, float]) -> dict[str, float]:
    """The sum of spends from `plain_spend`; unknown amounts count as zero."""
    total: dict[str, float] = {}
    for spend in spends:
        for name, value in spend.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _begin(run: str, seed: int | None = None) -> Object:
    """The fields of an arm before its first event; events update them, and they become a `RunRecord`."""
    return {"run": run, "seed": seed, "status": PENDING, "metrics": {}, "spend": {}, "artifacts": {}, "findings": ()}


def _list_announced(events: Sequence[Event]) -> dict[str, Object]:
    """The arms that the journal announced, by name."""
    announced = next((arms for event in reversed(events) if (arms := items(event.payload.get("arms")))), ())
    runs: dict[str, Object] = {}
    for arm in map(part, announced):
        if name := text(arm.get("arm")):
            seed = number(arm.get("seed"))
            run = text(arm.get("run")) or _SEED_SUFFIX.sub("", name)
            runs[name] = _begin(run, None if seed is None else int(seed))
    return runs


def _expand_config(config: Object, guessed: Mapping[str, Object]) -> dict[str, Object]:
    """The arms of a config whose journal does not list them, without those that have a folder of another name."""
    folders = {(run["run"], run["seed"]): name for name, run in guessed.items()}
    repeats = int(number(config.get("n_repeats")) or 1)
    runs: dict[str, Object] = {}
    for run in config_runs(config):
        name = text(run.get("name"))
        first_seed = number(config.get("base_seed"))
        seed = int(first_seed if first_seed is not None else number(run.get("seed")) or 0)
        for repeat in range(min(repeats, 1000) if name else 0):  # a damaged config must not give millions of arms
            arm = name if repeats == 1 else f"{name}__seed{seed + repeat}"
            if folders.get((name, seed + repeat), arm) == arm:
                runs[arm] = _begin(name, seed + repeat)
    return runs


def _guess_run(name: str, names: Sequence[str]) -> Object:
    """The fields of an unannounced arm, by its name, e.g. a seed that racing added."""
    seed = _SEED_SUFFIX.search(name)
    return _begin(name) if seed is None or name in names else _begin(name[: seed.start()], int(seed[1]))


def _apply(run: Object, event: Event) -> None:
    match event.kind:
        case Kind.ARM_STARTED:
            run |= {"status": STARTED, "error": "", "unscored": ""}
        case Kind.ARM_ENDED:
            # The spend of an arm covers all of its attempts, so the last event has the total.
            run |= _read_result(event.payload, run, spend=plain_spend(event.part("spend")) or run["spend"])
        case Kind.ARM_RECALLED:
            run["status"] = event.text("status") or "completed"
        case Kind.DIAGNOSED:
            run["findings"] = (*run["findings"], event.text("text"))
        case Kind.ARM_RETRIED:
            run |= {"status": PENDING, "error": event.text("reason")}
        case _:
            pass


def _read_folder(run: RunRecord) -> RunRecord:
    """The arm with the result in its folder."""
    result = run.result
    if result is not None:
        spend = run.spend or plain_spend(part(result, "extras", "spend"))
        return _change(run, _read_result(result, vars(run), spend=spend))
    return _change(run, {"status": STARTED}) if run.status == PENDING and run.files.config.exists() else run


def _read_result(result: Object, before: Object, *, spend: dict[str, float]) -> Object:
    """The fields of an arm from its result; fields that the result lacks stay as `before`."""
    metrics = {name: value for name, raw in part(result, "metrics").items() if (value := number(raw)) is not None}
    artifacts = {name: value for name, value in part(result, "artifacts").items() if isinstance(value, str)}
    extras = part(result, "extras")
    return {
        "status": text(result.get("status")) or "failed",
        "error": text(result.get("error")),
        "unscored": text(result.get("unscored")) or text(extras.get("unscored")),
        "metrics": metrics or before["metrics"],
        "spend": spend,
        "artifacts": artifacts,
        "findings": tuple(map(text, items(extras.get("findings")))) or before["findings"],
    }


def _change(run: RunRecord, fields: Object) -> RunRecord:
    """A changed copy that keeps cached properties. `replace` drops them and takes ten times as long."""
    changed = object.__new__(RunRecord)
    vars(changed).update(vars(run), **fields)
    return changed


def is_experiment(folder: Path, config: Object | None, events: Iterable[Event]) -> bool:
    """Whether a folder is the record of an experiment, perhaps a damaged one, and not that of a run."""
    if any(event.kind == Kind.STARTED for event in events):
        return True
    if config is not None:
        return bool(text(config.get("name"))) and bool(config_runs(config) or part(config, "matrix"))
    return ExperimentFiles(folder).config.is_file() and not RunFiles(folder).starts.exists()
