"""The single answers behind a score: what was asked, what was expected, what came.

`evsys errors` shows those that are wrong, `evsys compare` the tasks that two experiments answer differently.

Answers are in the record, tasks are not: those are read from where the config names them, and only a task whose content
is still the one that was answered lends its prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...errors import DataError, EvsysError, show, suggest
from ...record.runs import RunRecord
from ...record.values import Object, number, part, text
from ..detail import Detail
from ..pairs import ComparedTask, compare_tasks
from ..text import TextPage, clip, score_text

_PASS = 1.0
"""An answer that earns less is wrong."""
_LONGEST = 600
_MOST_PAIRS = 5


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """One attempt at one task."""

    benchmark: str
    """Split and label."""
    task: str
    sample: int
    reward: float | None
    """None where something other than the model failed."""
    got: str
    remark: str = ""
    """Why it was cut off or failed."""
    prompt: str | None = None
    """None where the task cannot be read, or is not the one that was answered."""
    expected: str | None = None

    @property
    def is_wrong(self) -> bool:
        return self.reward is None or self.reward < _PASS

    def holds(self, words: str) -> bool:
        """Whether a text occurs in any part of it."""
        parts = (self.task, self.prompt or "", self.expected or "", self.got, self.remark)
        return words.casefold() in "\n".join(parts).casefold()


@dataclass(frozen=True, slots=True)
class Errors:
    """The wrong answers of one arm after one step."""

    experiment: str
    arm: str
    step: int
    answers: list[TaskAnswer]
    """All, right ones too."""
    wrong: list[TaskAnswer]
    """Those that were asked for, the worst first."""
    steps: list[int]
    """After which there are answers."""
    remarks: list[str] = field(default_factory=list[str])

    @property
    def n_wrong(self) -> int:
        """Of all answers, whatever was asked for."""
        return sum(one.is_wrong for one in self.answers)

    def to_dict(self, limit: int | None = None) -> dict[str, Any]:
        """The JSON form."""
        head = {"experiment": self.experiment, "arm": self.arm, "step": self.step, "steps": self.steps}
        counts = {"n_answers": len(self.answers), "n_wrong": self.n_wrong}
        pairs = [{"expected": a, "got": b, "count": n} for (a, b), n in self.confusions()]
        shown = [asdict(one) for one in self.wrong[:limit]]
        return {
            **head,
            **counts,
            "n_found": len(self.wrong),
            "confusions": pairs,
            "wrong": shown,
            "remarks": self.remarks,
        }

    def confusions(self) -> list[tuple[tuple[str, str], int]]:
        """What was most often answered instead of what, where it happened more than once."""
        pairs = Counter((clip(one.expected, 60), clip(one.got, 60)) for one in self.wrong if one.expected is not None)
        return [(pair, count) for pair, count in pairs.most_common(_MOST_PAIRS) if count > 1]


def find_errors(
    detail: Detail, *, arm: str | None = None, step: int | None = None, benchmark: str | None = None, search: str = ""
) -> Errors:
    """The wrong answers of an arm: by default of the best one, after its latest step, on what chooses among runs."""
    run = choose_arm(detail, arm)
    scorings = _choose_scorings(run, benchmark)
    steps = sorted({int(number(line.get("step")) or 0) for line in scorings})
    if not steps:
        raise DataError(
            f"{run.name} of {detail.view.id} has no answers on record"
            f"{f' for {show(benchmark)}' if benchmark else ''}. Give it a metadata.benchmark, or name another --arm."
        )
    if step is not None and step not in steps:
        known = ", ".join(map(str, steps))
        raise DataError(f"--step {step}: {run.name} was not scored after that step. It was after: {known}.")
    chosen = steps[-1] if step is None else step
    own = [line for line in scorings if number(line.get("step")) == chosen]
    answers, remarks = read_answers(detail, run, own)
    found = [one for one in answers if one.is_wrong and (not search or one.holds(search))]
    # Those without a reward come first: with them something other than the model went wrong.
    found.sort(key=lambda one: -1.0 if one.reward is None else one.reward)
    return Errors(detail.view.id, run.name, chosen, answers, found, steps, remarks)


def read_answers(detail: Detail, run: RunRecord, scorings: Sequence[Object]) -> tuple[list[TaskAnswer], list[str]]:
    """The answers behind some scorings of an arm, with their tasks where those are there; and what is to be said."""
    from ...data.workspace.reference import slug

    answers: list[TaskAnswer] = []
    remarks: list[str] = []
    for line in scorings:
        split, label = text(line.get("split")), text(line.get("name"))
        recorded = run.read_answers(slug(f"{split}-{label}"), int(number(line.get("step")) or 0))
        if recorded is None:
            remarks.append(f"the answers behind {split}/{label} were not kept")
            continue
        tasks, problem = load_tasks(detail.config, split, label)
        lines = [one for one in recorded if text(one.get("task_id"))]
        answers += [_answer(f"{split}/{label}", one, tasks) for one in lines]
        changed = sum(text(one.get("task")) not in tasks for one in lines)
        if problem or changed:
            remarks.append(
                problem or f"{changed} tasks of {split}/{label} have changed since: their prompts are not shown"
            )
        if split == "test":
            remarks.append(f"{split}/{label} is a test set: what is tuned on it can no longer be reported on it")
    return answers, remarks


def errors_page(found: Errors, limit: int) -> str:
    """The wrong answers."""
    page = TextPage()
    counts = f"{found.n_wrong} of {len(found.answers)} answers wrong"
    page.add(f"{found.experiment}, {found.arm} after step {found.step}: {counts}")
    for remark in found.remarks:
        page.paragraph(f"({remark})")
    if pairs := found.confusions():
        page.heading("Most often")
        for (expected, got), count in pairs:
            page.add(f"- {count}x {got!r} instead of {expected!r}")
    if found.wrong:
        page.heading("Answers")
    for one in found.wrong[:limit]:
        reward = "no reward" if one.reward is None else f"reward {score_text(one.reward)}"
        page.add(f"- {one.benchmark} {one.task}{f' sample {one.sample}' if one.sample else ''}: {reward}")
        page.quote({"prompt": one.prompt, "expected": one.expected, "got": one.got, "remark": one.remark or None})
    if left := len(found.wrong) - limit:
        page.add(*([f"... {left} more: --limit, --search or --json"] if left > 0 else []))
    others = [str(step) for step in found.steps if step != found.step]
    page.add(*([f"other steps: {', '.join(others)}"] if others else []))
    return str(page)


def choose_arm(detail: Detail, name: str | None) -> RunRecord:
    """The arm of a name, or the first scored one of a run of that name; without one, the best."""
    if name is None:
        if detail.best_arm is None:
            raise DataError(f"{detail.view.id} has no arm yet.")
        return detail.best_arm
    own = [arm for arm in detail.arms if name in (arm.name, arm.run)]
    if not own:
        known = list(dict.fromkeys(one for arm in detail.arms for one in (arm.run, arm.name)))
        hint = suggest(name, known) or f"There are: {', '.join(known[:12])}."
        raise DataError(f"--arm {show(name)}: {detail.view.id} has no such run or arm. {hint}")
    return next((arm for arm in own if arm.name == name or arm.score_lines), own[0])


def _choose_scorings(run: RunRecord, benchmark: str | None) -> list[Object]:
    """The scorings that were asked for; else those that choose among runs, because tuning on a test set spoils it."""
    # A step that was scored again, after a kill for instance, has two lines; the later one counts.
    lines = {(text(one.get("split")), text(one.get("name")), number(one.get("step"))): one for one in run.score_lines}
    own = [line for line in lines.values() if text(line.get("split")) != "baseline"]
    if benchmark is not None:
        return [line for line in own if benchmark in (line.get("name"), f"{line.get('split')}/{line.get('name')}")]
    return [line for line in own if line.get("split") == "val"] or own


def load_tasks(config: Object, split: str, label: str) -> tuple[dict[str, Any], str]:
    """The tasks of a benchmark of a config by the hash of their content; and why there are none."""
    from ...config import Metadata
    from ...data.task_identity import task_id
    from ...data.workspace.reference import slug
    from ...experiment.benchmark_plan import load_entry

    try:
        entries = Metadata.model_validate(part(config, "metadata")).benchmark
        same = [one for one in entries if slug(one.label or "") == slug(label)]
        # An entry without a split is the test set; one that was written by tags is found by its label alone.
        entry = next((one for one in same if (one.split or "test") == split), same[0] if same else None)
        if entry is None and split == "eval" and not label:
            return {task_id(task): task for task in _load_held_out(config)}, ""
        if entry is None:
            return {}, f"the config has no benchmark {split}/{label}: prompts are not shown"
        return {task_id(task): task for task in load_entry(entry).tasks}, ""
    except (EvsysError, ValueError, OSError) as error:
        return {}, f"the tasks of {split}/{label} cannot be read, so that prompts are not shown: {error}"


def _load_held_out(config: Object) -> list[Any]:
    """The held-out rows of `run.eval`, as the tasks they were scored as."""
    from ...config import ExperimentConfig
    from ...eval.row_tasks import tasks_of_rows
    from ...experiment.arms.rows import row_reader

    whole = ExperimentConfig.model_validate(config)
    read = row_reader(whole.data_store)
    scored = {run.eval.model_dump_json(): run.eval for run in whole.all_runs()}
    return [
        task
        for one in scored.values()
        if one.eval_data is not None
        for task in tasks_of_rows(read(one.eval_data)[: one.n_samples])
    ]


def task_texts(task: Any) -> dict[str, str]:
    """What a task asks and, where it says so, what it expects."""
    from ...data.chat import text_of

    expected = getattr(task.verifier, "expected", None)
    stated = {} if expected is None else {"expected": _cut(expected if isinstance(expected, str) else show(expected))}
    return {"prompt": _cut(text_of(task.instruction)), **stated}


def with_prompts(config: Object, rows: Sequence[Mapping[str, Any]], split: str, label: str) -> list[Object]:
    """Answers that were just given, with what was asked."""
    tasks, _ = load_tasks(config, split, label) if rows else ({}, "")
    known = {task.task_id: task_texts(task) for task in tasks.values()}
    return [{**known.get(text(row.get("task_id")), {}), **row} for row in rows]


def _answer(benchmark: str, line: Object, tasks: Mapping[str, Any]) -> TaskAnswer:
    task = tasks.get(text(line.get("task")))
    sample = number(line.get("sample"))
    return TaskAnswer(
        benchmark=benchmark,
        task=text(line.get("task_id")),
        sample=int(sample or 0),
        reward=number(line.get("reward")),
        got=text(line.get("text")),
        remark=text(line.get("error")),
        **({} if task is None else task_texts(task)),
    )


def _cut(said: str) -> str:
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST - 3]}..."


def _by_task(answers: Iterable[TaskAnswer]) -> dict[str, TaskAnswer]:
    """The first answer to each task."""
    found: dict[str, TaskAnswer] = {}
    for one in answers:
        found.setdefault(one.task, one)
    return found


@dataclass(frozen=True, slots=True)
class Flip:
    """One task that one experiment scores higher on than the other."""

    task: str
    first: float
    second: float
    """The mean score of the best run of each, over its seeds."""
    prompt: str | None
    expected: str | None
    first_answer: str | None
    second_answer: str | None
    """Of the best seed of each."""


@dataclass(frozen=True, slots=True)
class Flips:
    """All of them for one metric."""

    metric: str
    n_tasks: int
    gained: list[Flip]
    lost: list[Flip]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        sides = {"gained": self.gained, "lost": self.lost}
        return {"metric": self.metric, "n_tasks": self.n_tasks} | {
            name: [asdict(one) for one in flips] for name, flips in sides.items()
        }


def find_flips(first: Detail, second: Detail) -> Flips | None:
    """The tasks that the second scores higher on, and those that the first does; None without common tasks."""
    left, right = first.scores, second.scores
    shared = [metric for metric in (first.view.metric, second.view.metric) if metric in left and metric in right]
    if not shared:
        return None
    metric = shared[0]
    paired = [one for one in compare_tasks(left[metric], right[metric]) if one.change != "unpaired"]
    if not paired:
        return None
    flipped = [one for one in paired if one.change != "same"]
    # Answers and tasks are read from the disk for this, which is spared where no task changed sides.
    answers = [_answers(detail, metric) if flipped else {} for detail in (first, second)]
    flips = {
        change: [
            _flip(one, answers[0].get(one.task), answers[1].get(one.task)) for one in flipped if one.change == change
        ]
        for change in ("gained", "lost")
    }
    return Flips(metric, len(paired), flips["gained"], flips["lost"])


def _answers(detail: Detail, metric: str) -> dict[str, TaskAnswer]:
    """What the best seed answered at its latest scoring by a metric."""
    arm = detail.best_arm
    taken = [(step, line) for name, step, line, _ in arm.scores if name == metric] if arm is not None else []
    if arm is None or not taken:
        return {}
    _, latest = max(taken, key=lambda one: one[0])
    return _by_task(read_answers(detail, arm, [latest])[0])


def _flip(one: ComparedTask, first: TaskAnswer | None, second: TaskAnswer | None) -> Flip:
    known = first or second
    prompt, expected = (None, None) if known is None else (known.prompt, known.expected)
    return Flip(one.task, one.a or 0.0, one.b or 0.0, prompt, expected, first and first.got, second and second.got)
