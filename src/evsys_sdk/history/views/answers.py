"""The answers behind a score, with their prompts and expected answers.

`evsys errors` shows wrong answers, `evsys compare` the tasks that two experiments answer differently.

Answers are in the record, tasks are not: they are read from the sources in the config, and a prompt is shown only if
the content of its task is unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import DataError, EvsysError, show, suggest
from ...record.runs import RunRecord
from ...record.values import Object, number, part, text
from ..detail import Detail
from ..pairs import ComparedTask, compare_tasks
from ..text import TextPage, clip, score_text

if TYPE_CHECKING:
    from ...config import DataConfig

_PASS = 1.0
"""Lowest reward of a right answer."""
_LONGEST = 600
_MOST_PAIRS = 5


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """One answer to one task."""

    benchmark: str
    """Split and label."""
    task: str
    sample: int
    reward: float | None
    """None if something other than the model failed."""
    got: str
    remark: str = ""
    """Why the answer was cut off or failed."""
    prompt: str | None = None
    """None if the task cannot be read, or has changed."""
    expected: str | None = None

    @property
    def is_wrong(self) -> bool:
        return self.reward is None or self.reward < _PASS

    def matches(self, words: str) -> bool:
        """Whether a text occurs in the task, the answer or the remark, ignoring case."""
        parts = (self.task, self.prompt or "", self.expected or "", self.got, self.remark)
        return words.casefold() in "\n".join(parts).casefold()


@dataclass(frozen=True, slots=True)
class Errors:
    """The wrong answers of one arm after one step."""

    experiment: str
    arm: str
    step: int
    answers: list[TaskAnswer]
    """All answers, also right ones."""
    wrong: list[TaskAnswer]
    """The requested wrong answers, the worst first."""
    steps: list[int]
    """The steps with answers."""
    remarks: list[str] = field(default_factory=list[str])

    @property
    def n_wrong(self) -> int:
        """The number of wrong answers among all."""
        return sum(answer.is_wrong for answer in self.answers)

    def to_dict(self, limit: int | None = None) -> dict[str, Any]:
        """The JSON form."""
        head = {"experiment": self.experiment, "arm": self.arm, "step": self.step, "steps": self.steps}
        counts = {"n_answers": len(self.answers), "n_wrong": self.n_wrong}
        pairs = [{"expected": a, "got": b, "count": n} for (a, b), n in self.confusions()]
        shown = [asdict(answer) for answer in self.wrong[:limit]]
        return {
            **head,
            **counts,
            "n_found": len(self.wrong),
            "confusions": pairs,
            "wrong": shown,
            "remarks": self.remarks,
        }

    def confusions(self) -> list[tuple[tuple[str, str], int]]:
        """The most frequent pairs of expected and wrong answer that occur more than once, with their counts."""
        # A right last answer earns a part of the reward where earlier turns count.
        wrong = (answer for answer in self.wrong if answer.expected not in (None, answer.got))
        pairs = Counter((clip(answer.expected or "", 60), clip(answer.got, 60)) for answer in wrong)
        return [(pair, count) for pair, count in pairs.most_common(_MOST_PAIRS) if count > 1]


def find_errors(
    detail: Detail, *, arm: str | None = None, step: int | None = None, benchmark: str | None = None, search: str = ""
) -> Errors:
    """The wrong answers of an arm; by default of the best one, after its latest step, on selection benchmarks."""
    run = choose_arm(detail, arm)
    scorings = _choose_scorings(run, benchmark)
    steps = sorted({int(number(line.get("step")) or 0) for line in scorings})
    if not steps:
        raise DataError(
            f"{run.name} of {detail.view.id} has no answers on record"
            f"{f' for {show(benchmark)}' if benchmark else ''}. Give it a metadata.benchmark, or name another --arm."
        )
    if step is not None and step not in steps:
        scored = ", ".join(map(str, steps))
        raise DataError(f"--step {step}: {run.name} was not scored after this step. Scored steps: {scored}.")
    chosen = steps[-1] if step is None else step
    latest = [line for line in scorings if number(line.get("step")) == chosen]
    answers, remarks = read_answers(detail, run, latest)
    wrong = [answer for answer in answers if answer.is_wrong and (not search or answer.matches(search))]
    # Answers without a reward first, because something other than the model failed.
    wrong.sort(key=lambda answer: -1.0 if answer.reward is None else answer.reward)
    return Errors(detail.view.id, run.name, chosen, answers, wrong, steps, remarks)


def read_answers(detail: Detail, run: RunRecord, scorings: Sequence[Object]) -> tuple[list[TaskAnswer], list[str]]:
    """The answers behind scorings of an arm, with their tasks if available, and remarks."""
    from ...data.workspace.reference import slug

    answers: list[TaskAnswer] = []
    remarks: list[str] = []
    for line in scorings:
        split, label = text(line.get("split")), text(line.get("name"))
        recorded = run.read_answers(slug(f"{split}-{label}"), int(number(line.get("step")) or 0))
        if recorded is None:
            remarks.append(f"the answers behind {split}/{label} were not stored")
            continue
        tasks, problem = load_tasks(detail.config, split, label)
        answered = [row for row in recorded if text(row.get("task_id"))]
        answers += [_answer(f"{split}/{label}", row, tasks) for row in answered]
        changed = sum(text(row.get("task")) not in tasks for row in answered)
        if problem or changed:
            remarks.append(
                problem or f"{changed} tasks of {split}/{label} have changed since: their prompts are not shown"
            )
        if split == "test":
            remarks.append(f"{split}/{label} is a test set: what is tuned on it can no longer be reported on it")
    return answers, remarks


def errors_page(errors: Errors, limit: int) -> str:
    """The page of `evsys errors`."""
    page = TextPage()
    counts = f"{errors.n_wrong} of {len(errors.answers)} answers wrong"
    page.add(f"{errors.experiment}, {errors.arm} after step {errors.step}: {counts}")
    for remark in errors.remarks:
        page.paragraph(f"({remark})")
    if pairs := errors.confusions():
        page.heading("Most often")
        for (expected, got), count in pairs:
            page.add(f"- {count}x {got!r} instead of {expected!r}")
    if errors.wrong:
        page.heading("Answers")
    for answer in errors.wrong[:limit]:
        reward = "no reward" if answer.reward is None else f"reward {score_text(answer.reward)}"
        page.add(f"- {answer.benchmark} {answer.task}{f' sample {answer.sample}' if answer.sample else ''}: {reward}")
        page.quote(
            {"prompt": answer.prompt, "expected": answer.expected, "got": answer.got, "remark": answer.remark or None}
        )
    if n_omitted := len(errors.wrong) - limit:
        page.add(*([f"... {n_omitted} more: --limit, --search or --json"] if n_omitted > 0 else []))
    others = [str(step) for step in errors.steps if step != errors.step]
    page.add(*([f"other steps: {', '.join(others)}"] if others else []))
    return str(page)


def choose_arm(detail: Detail, name: str | None) -> RunRecord:
    """The arm with this name, or the first scored arm of the run with this name; by default the best arm."""
    if name is None:
        if detail.best_arm is None:
            raise DataError(f"{detail.view.id} has no arm yet.")
        return detail.best_arm
    arms = [arm for arm in detail.arms if name in (arm.name, arm.run)]
    if not arms:
        names = list(dict.fromkeys(label for arm in detail.arms for label in (arm.run, arm.name)))
        hint = suggest(name, names) or f"There are: {', '.join(names[:12])}."
        raise DataError(f"--arm {show(name)}: {detail.view.id} has no such run or arm. {hint}")
    return next((arm for arm in arms if arm.name == name or arm.score_lines), arms[0])


def _choose_scorings(run: RunRecord, benchmark: str | None) -> list[Object]:
    """The scorings of a benchmark; by default those of val, because looking at test answers invites tuning on them."""
    # A step that was scored again after a kill has two lines; the last one counts.
    lines = {
        (text(line.get("split")), text(line.get("name")), number(line.get("step"))): line for line in run.score_lines
    }
    scorings = [line for line in lines.values() if text(line.get("split")) != "baseline"]
    if benchmark is not None:
        return [line for line in scorings if benchmark in (line.get("name"), f"{line.get('split')}/{line.get('name')}")]
    return [line for line in scorings if line.get("split") == "val"] or scorings


def load_tasks(config: Object, split: str, label: str) -> tuple[dict[str, Any], str]:
    """Hash -> task of a config's benchmark, and why tasks are missing."""
    from ...config import Metadata
    from ...data.task_identity import task_id
    from ...data.workspace.reference import slug
    from ...experiment.benchmark_plan import load_entry

    try:
        entries = Metadata.model_validate(part(config, "metadata")).benchmark
        same = [entry for entry in entries if slug(entry.label or "") == slug(label)]
        # An entry without a split is the test set; an entry with its role in tags is found by its label.
        entry = next((entry for entry in same if (entry.split or "test") == split), same[0] if same else None)
        if entry is None and split in ("eval", "train_fit"):
            return {task_id(task): task for task in _load_rows(config, split, label)}, ""
        if entry is None:
            return {}, f"the config has no benchmark {split}/{label}: prompts are not shown"
        return {task_id(task): task for task in load_entry(entry).tasks}, ""
    except (EvsysError, ValueError, OSError) as error:
        return {}, f"the tasks of {split}/{label} cannot be read, so that prompts are not shown: {error}"


def _load_rows(config: Object, split: str, label: str) -> list[Any]:
    """The rows that `run.eval` scores as tasks: held-out rows, those of a continual stage, or the training rows."""
    from ...config import ExperimentConfig
    from ...eval.row_tasks import tasks_of_rows
    from ...experiment.arms.rows import row_reader

    loaded = ExperimentConfig.model_validate(config)
    read = row_reader(loaded.data_store)
    sources: dict[str, tuple[DataConfig, int | None]] = {}
    for run in loaded.all_runs():
        stages = {stage.name: stage.eval_data for stage in run.continual.stages} if run.continual else {}
        data = run.data if split == "train_fit" else stages.get(label) if label else run.eval.eval_data
        if data is not None:
            sources[f"{data.model_dump_json()} {run.eval.n_samples}"] = data, run.eval.n_samples
    return [task for data, most in sources.values() for task in tasks_of_rows(read(data)[:most])]


def task_texts(task: Any) -> dict[str, str]:
    """The prompt of a task and, if it has one, its expected answer."""
    from ...data.chat import text_of

    expected = getattr(task.verifier, "expected", None)
    expected_text = (
        {} if expected is None else {"expected": _cut(expected if isinstance(expected, str) else show(expected))}
    )
    return {"prompt": _cut(text_of(task.instruction)), **expected_text}


def with_prompts(config: Object, rows: Sequence[Mapping[str, Any]], split: str, label: str) -> list[Object]:
    """New answers with their prompts."""
    tasks, _ = load_tasks(config, split, label) if rows else ({}, "")
    texts = {task.task_id: task_texts(task) for task in tasks.values()}
    return [{**texts.get(text(row.get("task_id")), {}), **row} for row in rows]


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


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 3]}..."


def _by_task(answers: Iterable[TaskAnswer]) -> dict[str, TaskAnswer]:
    """The first answer to each task."""
    by_task: dict[str, TaskAnswer] = {}
    for answer in answers:
        by_task.setdefault(answer.task, answer)
    return by_task


@dataclass(frozen=True, slots=True)
class Flip:
    """A task on which one experiment scores higher than the other."""

    task: str
    first: float
    second: float
    """The mean score of each best run, over its seeds."""
    prompt: str | None
    expected: str | None
    first_answer: str | None
    second_answer: str | None
    """The answer of the best seed of each."""


@dataclass(frozen=True, slots=True)
class Flips:
    """All flips of one metric."""

    metric: str
    n_tasks: int
    gained: list[Flip]
    lost: list[Flip]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        sides = {"gained": self.gained, "lost": self.lost}
        return {"metric": self.metric, "n_tasks": self.n_tasks} | {
            name: [asdict(flip) for flip in flips] for name, flips in sides.items()
        }


def find_flips(first: Detail, second: Detail) -> Flips | None:
    """The tasks on which either experiment scores higher; None without common tasks."""
    left, right = first.scores, second.scores
    shared = [metric for metric in (first.view.metric, second.view.metric) if metric in left and metric in right]
    if not shared:
        return None
    metric = shared[0]
    paired = [task for task in compare_tasks(left[metric], right[metric]) if task.change != "unpaired"]
    if not paired:
        return None
    flipped = [task for task in paired if task.change != "same"]
    # Answers and tasks are read from disk only if a task flipped.
    answers = [_answers(detail, metric) if flipped else {} for detail in (first, second)]
    flips = {
        change: [
            _flip(task, answers[0].get(task.task), answers[1].get(task.task))
            for task in flipped
            if task.change == change
        ]
        for change in ("gained", "lost")
    }
    return Flips(metric, len(paired), flips["gained"], flips["lost"])


def _answers(detail: Detail, metric: str) -> dict[str, TaskAnswer]:
    """Task -> answer of the best seed at its latest scoring by a metric."""
    arm = detail.best_arm
    scorings = [(step, line) for name, step, line, _ in arm.scores if name == metric] if arm is not None else []
    if arm is None or not scorings:
        return {}
    _, latest = max(scorings, key=lambda scoring: scoring[0])
    return _by_task(read_answers(detail, arm, [latest])[0])


def _flip(compared: ComparedTask, first: TaskAnswer | None, second: TaskAnswer | None) -> Flip:
    answer = first or second
    prompt, expected = (None, None) if answer is None else (answer.prompt, answer.expected)
    return Flip(
        compared.task,
        compared.a or 0.0,
        compared.b or 0.0,
        prompt,
        expected,
        first and first.got,
        second and second.got,
    )
