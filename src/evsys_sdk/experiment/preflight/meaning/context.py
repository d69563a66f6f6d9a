"""The input of the checks of meaning: recipes with their training rows, and task sets, as prompts and answers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from ....algorithms.base import BaseAlgorithm
from ....algorithms.on_policy import RolloutAlgorithm
from ....builtins import BUILTINS
from ....config import BenchmarkEntry, DataConfig, ExperimentConfig, Hypothesis, RunConfig, RunStage
from ....data.chat import text_of
from ....data.rows import parse_rows
from ....data.shapes import is_object
from ....data.task_identity import task_key
from ....data.types import HarborTask, InProcessVerifier, TargetFormat
from ....errors import EvsysError
from ....eval.row_tasks import tasks_of_rows
from ....eval.verifier import VerifierInput, build_verifier
from ....protocols import Row, traits_of
from ....rollouts.rollout import opening
from ....training.blocking import run_blocking
from ...arms.recipe import build_algorithm, pair_stages
from ...benchmark_plan import load_entry
from ..recipes import StillClient
from ..sources import PulledRows

MOST_RUNS = 200
_MOST_ROWS = 2_000
_CHARACTERS_PER_TOKEN = 8
"""An upper bound for ordinary text, if the tokenizer is not available; no text is reported as too long by mistake."""
COMPARING = ("exact_match", "contains", "numeric_match", "json_match")
"""Verifiers that compare the answer with an expected one, fast and in this process."""


@dataclass(frozen=True, slots=True)
class Example:
    """A row as a prompt and its answer."""

    prompt: str
    system: str
    answer: str | None
    rejected: str | None = None
    row: int = 0
    raw: Row = field(default_factory=dict[str, Any], compare=False, repr=False)
    """The row itself."""


def example_of(row: Row, number: int) -> Example:
    """Convert a row of any format to an `Example`."""
    prompt: Any = row.get("prompt")
    answer: str | None = None
    rejected: str | None = None
    if "chosen" in row and "rejected" in row:
        answer, rejected = _last_text(row["chosen"]), _last_text(row["rejected"])
    elif "instruction" in row and "verifier" in row:
        metadata = cast("Mapping[str, Any]", row.get("metadata") or {})
        prompt = [*messages_of(metadata.get("context_messages")), {"content": row["instruction"]}]
        expected = cast("Mapping[str, Any]", row["verifier"]).get("expected")
        answer = expected_text(expected) or None  # the verifier checks an empty one
    elif "inputs" in row:
        prompt = "\n".join(map(str, cast("Mapping[str, Any]", row["inputs"]).values()))
        answer = None if row.get("expected") is None else str(row["expected"])
    else:
        messages = messages_of(row.get("messages"))
        learned = (at for at, one in enumerate(messages) if one.get("role") == "assistant" and one.get("weight") != 0)
        last = max(learned, default=len(messages))
        prompt, answer = messages[:last], _text(messages[last]) if last < len(messages) else None
    return Example(*_split(prompt), answer, rejected, number, row)


def expected_text(expected: Any) -> str | None:
    """The expected answer of a verifier as text; None if it is no text, number, object or list of them."""
    if is_object(expected):
        return json.dumps(expected, default=str)
    several = cast("list[Any]", expected) if isinstance(expected, list) else []
    first: Any = several[0] if several else cast("Any", expected)
    return str(first) if isinstance(first, str | int | float) and not isinstance(first, bool) else None


def messages_of(value: Any) -> list[dict[str, Any]]:
    """The messages of a conversation; an empty list if the value is no list."""
    return [one for one in cast("list[Any]", value) if isinstance(one, dict)] if isinstance(value, list) else []


def _text(message: Mapping[str, Any]) -> str:
    calls: Any = message.get("tool_calls")
    return text_of(message.get("content")) + (str(calls) if calls else "")


def _split(prompt: Any) -> tuple[str, str]:
    """Split a prompt into the text of the conversation and the system prompt."""
    if not isinstance(prompt, list):
        return str(prompt or ""), ""
    messages = messages_of(prompt)
    asked = [_text(one) for one in messages if one.get("role", "user") != "system"]
    return "\n".join(asked), "\n".join(_text(one) for one in messages if one.get("role") == "system")


def _last_text(value: Any) -> str:
    return _text(messages[-1]) if (messages := messages_of(value)) else str(value or "")


@dataclass
class StageView:
    """One recipe of a run with the rows it trains on."""

    run: RunConfig
    run_place: str
    stage: RunStage
    algorithm: BaseAlgorithm
    pulled: PulledRows | None
    client: StillClient | None
    examples: list[Example]

    @property
    def params_place(self) -> str:
        return f"{self.run_place}.{self.stage.path}.params"

    @property
    def place(self) -> str:
        return f"{self.run_place}.{self.stage.data_path}"

    @property
    def cfg(self) -> Any:
        return self.algorithm.cfg

    @property
    def learns_from_answers(self) -> bool:
        """Whether the recipe trains on the answers in the rows, not on sampled ones."""
        return not isinstance(self.algorithm, RolloutAlgorithm) and self.stage.kind != "opd"

    @property
    def steps(self) -> int | None:
        """Number of training steps; None if unknown."""
        if self.cfg.max_steps is not None:
            return self.cfg.max_steps
        complete = self.pulled is not None and self.pulled.complete and self.pulled.rows
        return self.algorithm.planned_steps(self.pulled.rows) if complete and self.pulled else None

    @cached_property
    def answers(self) -> list[str]:
        return [one.answer for one in self.examples if one.answer is not None]

    @cached_property
    def tasks(self) -> list[HarborTask]:
        """The tasks of the rollouts."""
        rows = self.pulled.rows[:_MOST_ROWS] if self.pulled is not None else []
        return list(parse_rows(rows, TargetFormat.HARBOR_TASK))

    def where(self, example: Example) -> str:
        return "" if self.pulled is None else self.pulled.where(example.row)


@dataclass
class TaskSet:
    """Tasks on which runs are scored."""

    place: str
    label: str
    tasks: list[HarborTask]
    """The tasks that are scored."""
    available: int
    max_tokens: int
    entry: BenchmarkEntry | None = None
    stage: StageView | None = None
    """The stage of a continual run that is scored on these tasks; None for all stages."""

    @property
    def settings(self) -> str:
        """Place of the block with the evaluation settings."""
        return f"{self.stage.run_place}.eval" if self.stage else self.place

    @cached_property
    def examples(self) -> list[Example]:
        return [
            Example(*_split(opening(task)), expected_text(getattr(task.verifier, "expected", None)), row=at)
            for at, task in enumerate(self.tasks)
        ]

    @cached_property
    def answers(self) -> list[str]:
        """The expected answers."""
        return [one.answer for one in self.examples if one.answer is not None]

    def where(self, example: Example) -> str:
        return f"task '{self.tasks[example.row].task_id}'"

    @cached_property
    def keys(self) -> dict[str, str]:
        """Normalised prompt -> id of a task with this prompt."""
        return {task_key(task): task.task_id for task in self.tasks}

    @property
    def compares(self) -> bool:
        """Whether all verifiers compare with an expected answer (`COMPARING`)."""
        return bool(self.tasks) and all(
            isinstance(task.verifier, InProcessVerifier) and task.verifier.fn_name in COMPARING for task in self.tasks
        )

    @property
    def is_cheap(self) -> bool:
        """Whether all verifiers compare, or are functions of the project, which may be called a few times."""
        names = {getattr(task.verifier, "fn_name", "") for task in self.tasks}
        return self.compares or (bool(names) and names.isdisjoint(BUILTINS["verifier"]) and "" not in names)

    @property
    def verifier(self) -> str:
        """Name of the verifier of the first task."""
        return getattr(self.tasks[0].verifier, "fn_name", "") if self.tasks else ""

    def accepted(self, answers: Sequence[str]) -> list[bool]:
        """For each answer, whether the verifier of any task accepts it."""
        verifiers = {repr(task.verifier): build_verifier(task.verifier) for task in self.tasks}

        async def ask() -> list[bool]:
            return [await _is_right(answer, verifiers.values()) for answer in answers]

        return run_blocking(ask)


async def _is_right(answer: str, verifiers: Iterable[Any]) -> bool:
    for verifier in verifiers:
        try:
            if (await verifier(VerifierInput(prompt="", completion=answer))).reward > 0:
                return True
        except EvsysError:
            continue
    await asyncio.sleep(0)
    return False


@dataclass
class Context:
    """A config with its rows, models and tasks: the input of every check."""

    config: ExperimentConfig
    pulled: Mapping[str, PulledRows] = field(default_factory=dict[str, PulledRows])
    clients: Mapping[str, StillClient] = field(default_factory=dict[str, StillClient])
    _examples: dict[int, list[Example]] = field(default_factory=dict[int, list[Example]])

    @property
    def claim(self) -> str:
        """The text of the hypothesis."""
        found = self.config.metadata.hypothesis
        return found.claim if isinstance(found, Hypothesis) else found or ""

    @cached_property
    def runs(self) -> list[tuple[str, RunConfig]]:
        """Place and config of each run."""
        runs = self.config.all_runs()[:MOST_RUNS]
        return [("run" if self.config.run is not None else f"runs[{at}]", run) for at, run in enumerate(runs)]

    @cached_property
    def stages(self) -> list[StageView]:
        return [view for place, run in self.runs for view in self._views(place, run)]

    @cached_property
    def sources(self) -> list[StageView]:
        """One stage for each readable source of training rows."""
        return list({id(one.examples): one for one in reversed(self.stages) if one.examples}.values())[::-1]

    @cached_property
    def benchmarks(self) -> list[TaskSet]:
        """The task sets of `metadata.benchmark`."""
        return [found for at, one in enumerate(self.config.metadata.benchmark) if (found := self._set_of(at, one))]

    @cached_property
    def sets(self) -> list[TaskSet]:
        """The benchmarks, and the held-out rows of `run.eval` and of stages as task sets."""
        held: dict[str, TaskSet] = {}
        for place, run in self.runs:
            for data, at, stage in self._held_out(place, run) if run.eval.metrics and run.eval.enabled else ():
                pulled = self.pulled.get(data.model_dump_json())
                if pulled is not None and pulled.rows and not pulled.problems:
                    given = (run.eval.inference.params if run.eval.inference else {}).get("max_tokens")
                    limit = given if isinstance(given, int) else 1 << 30
                    tasks = tasks_of_rows(pulled.rows[: run.eval.n_samples or _MOST_ROWS])
                    one = TaskSet(at, "eval", tasks, len(pulled.rows), limit, stage=stage)
                    held.setdefault(repr((id(pulled), limit, run.eval.n_samples, stage and stage.place)), one)
        return [*self.benchmarks, *held.values()]

    def _held_out(self, place: str, run: RunConfig) -> Iterator[tuple[DataConfig, str, StageView | None]]:
        if run.eval.eval_data is not None:
            yield run.eval.eval_data, f"{place}.eval", None
        for one in self.stages if run.continual else ():
            if one.run_place == place and one.stage.eval_data is not None:
                yield one.stage.eval_data, f"{one.place.removesuffix('data')}eval_data", one

    @cached_property
    def judged(self) -> list[tuple[list[StageView], TaskSet]]:
        """Pairs of the stages of a run whose rows were read and a task set that scores them."""
        by_run: dict[str, list[StageView]] = defaultdict(list)
        for one in self.stages:
            if one.examples:
                by_run[one.run_place].append(one)
        alike = {tuple(id(one.examples) for one in stages): stages for stages in reversed(by_run.values())}
        found = [(stages, one) for stages in reversed(alike.values()) for one in self.sets if one.stage is None]
        return [*found, *(([one.stage], one) for one in self.sets if one.stage is not None and one.stage.examples)]

    def tokens(self, text: str, client: StillClient | None) -> int:
        """Number of tokens of a text; a low estimate if the tokenizer is not available."""
        if client is None or client.context_length is None:
            return len(text) // _CHARACTERS_PER_TOKEN
        return len(client.tokenizer.encode(text))

    @property
    def client(self) -> StillClient | None:
        """The client of the runs if all have the same kind of tokenizer; else None."""
        found = list(self.clients.values())
        kinds = {type(one.tokenizer).__qualname__ for one in found}
        return found[0] if len(kinds) == 1 and all(one.context_length is not None for one in found) else None

    def _views(self, place: str, run: RunConfig) -> Iterator[StageView]:
        try:
            algorithm = build_algorithm(run)
            pairs = pair_stages(run, algorithm)
        except Exception:  # already reported with the kinds and params
            return
        rank = traits_of(algorithm).lora_rank
        client = self.clients.get(repr((run.model, run.backend, run.algorithm.kind, rank)))
        for stage, built in pairs:
            recipe = getattr(built, "recipe", built)
            if isinstance(recipe, BaseAlgorithm):
                pulled = None if stage.data is None else self.pulled.get(stage.data.model_dump_json())
                yield StageView(run, place, stage, recipe, pulled, client, self._examples_of(pulled))

    def _examples_of(self, pulled: PulledRows | None) -> list[Example]:
        if pulled is None or pulled.problems:
            return []
        if id(pulled) not in self._examples:
            count = len(pulled.rows)
            chosen = range(count) if count <= _MOST_ROWS else [at * count // _MOST_ROWS for at in range(_MOST_ROWS)]
            self._examples[id(pulled)] = [example_of(pulled.rows[at], at) for at in chosen]
        return self._examples[id(pulled)]

    def _set_of(self, index: int, entry: BenchmarkEntry) -> TaskSet | None:
        try:
            tasks = list(load_entry(entry).tasks)
        except EvsysError:  # reported with the entry
            return None
        trained = [found.max_tokens for one in self.stages if (found := traits_of(one.algorithm).rollouts)]
        limit = entry.max_tokens or next(iter(trained), None) or 256
        place = f"metadata.benchmark[{index}]"
        return TaskSet(place, entry.label or "", tasks[: entry.n_tasks], len(tasks), limit, entry)


def is_labels(answers: Sequence[str], *, least: int = 8) -> bool:
    """Whether answers are class labels: short, with few distinct values."""
    kinds = Counter(answers)
    return len(answers) >= least and len(kinds) <= len(answers) / 3 and all(len(one.split()) <= 6 for one in kinds)
