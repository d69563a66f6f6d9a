"""Search the training data of an experiment for its evaluation tasks.

    for report in scan_config(config):
        print(report.source, report.flag(), report.remark())

The scan covers the training rows of every stage of every run, after their transforms, and those of recorded arms from
whose checkpoints a run starts. Evaluation tasks are those of the config's benchmarks and its `eval_data`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from pydantic import ValidationError

from ..config import DataConfig, ExperimentConfig, RunConfig
from ..data import Workspace, describe_source, prepare_rows
from ..data.contamination import ContaminationReport, ProbeTask, TaskIndex
from ..data.task_identity import row_texts
from ..errors import EvsysError
from ..log import get_logger
from ..paths import in_project
from ..protocols import DataStore, Row
from ..record.evidence import find_run_of
from ..record.run_files.checkpoints import locate_weights
from ..record.runs import RunRecord
from ..record.values import items, part
from ..registry import get_data_store
from ..user_code import limit_user_code
from .benchmark_plan import load_entry

_LONGEST_S = 600.0
"""Time limit for reading rows with user code, if the config sets no `arm_timeout_s`."""
_ANSWERS = ("tool_slug", "answer", "expected", "target_assistant")
"""Keys of rows with the expected answer."""
QUICK_ROWS = 100_000
"""Maximum number of rows per source to scan before a run; `evsys contamination` scans all of them."""


def scan_config(config: ExperimentConfig, *, most_rows: int | None = None) -> list[ContaminationReport]:
    """Scan each source of training rows once, up to `most_rows` rows."""
    config = config.expanded()
    runs = config.all_runs()
    ancestors = ((one, f" of {arm}, from whose weights it starts") for arm, one in _find_ancestors(runs))
    sources: dict[str, tuple[DataConfig, str]] = {}
    for run, where in chain(((run, "") for run in runs), ancestors):
        for stage in run.stages():
            if stage.data is not None:
                sources.setdefault(repr(stage.data), (stage.data, where))
    with limit_user_code(f"reading the rows of experiment '{config.name}'", limit_s=config.arm_timeout_s or _LONGEST_S):
        store: DataStore = get_data_store(config.data_store.kind)(**config.data_store.params)
        tasks = _collect_tasks(config, store) if sources else []
        index, found = TaskIndex(tasks), list[ContaminationReport]()
        for data, where in sources.values() if tasks else ():
            rows = islice(prepare_rows(data, store=store, workspace=Workspace()), most_rows)
            found.append(index.scan(map(row_texts, rows), f"{describe_source(data)}{where}"))
    return found


def _find_ancestors(runs: Iterable[RunConfig]) -> Iterator[tuple[str, RunConfig]]:
    """Yield the recorded arms from whose checkpoints the runs start, and recursively the arms before them."""
    seen: set[Path] = set()
    waiting = list(runs)
    while waiting:
        model = waiting.pop().model
        reference = model.init_from_checkpoint or model.load_checkpoint_path
        arm = None if reference is None else find_run_of(Path(locate_weights(str(in_project(reference)))))
        if arm is None or arm in seen:
            continue
        seen.add(arm)
        try:
            run = RunConfig.model_validate(RunRecord(arm.parent, arm.name, "").config)
        except ValidationError:  # its config is missing or of another version, so that its rows are unknown
            continue
        waiting.append(run)
        yield f"{arm.parent.name}/{arm.name}", run


def find_contamination(config: ExperimentConfig) -> tuple[list[str], list[str]]:
    """Scan the first rows of each source; return messages about copies of evaluation tasks, and about near matches."""
    try:
        scans = scan_config(config, most_rows=QUICK_ROWS)
    except EvsysError as error:  # the run reports it where the rows are needed
        get_logger(__name__).warning("the training rows were not scanned for evaluation tasks: %s", error)
        return [], []
    return [flag for scan in scans if (flag := scan.flag())], [one for scan in scans if (one := scan.remark())]


def _collect_tasks(config: ExperimentConfig, store: DataStore) -> list[ProbeTask]:
    """Collect the evaluation tasks of an experiment: those of benchmarks and of `eval_data`."""
    benchmarks = {one.sha256: one for entry in config.metadata.benchmark for one in [load_entry(entry)]}
    found = [
        ProbeTask(task.task_id, benchmark.name, "\n".join(row_texts(task.instruction)))
        for benchmark in benchmarks.values()
        for task in benchmark.tasks
    ]
    held_out = [one.eval_data for run in config.all_runs() for one in (run.eval, *run.stages())]
    for data in {repr(data): data for data in held_out if data is not None}.values():
        rows = enumerate(prepare_rows(data, store=store, workspace=Workspace()), start=1)
        found += [ProbeTask(f"row {at}", describe_source(data), _find_question(row)) for at, row in rows]
    return found


def _find_question(row: Row) -> str:
    """The last user turn of a row of `eval_data`; all texts but the expected answer if it has no turns."""
    turns = list(map(part, items(row.get("messages"))))
    users = [row_texts(turn) for turn in turns if turn.get("role") == "user"]
    return "\n".join(users[-1] if users else row_texts({key: row[key] for key in row if key not in _ANSWERS}))
