"""`lm_eval`: tasks of lm-eval as a benchmark, e.g. to detect regressions after training.

    benchmark: { kind: lm_eval, tasks: [arc_easy, hellaswag], params: { include: evals }, name: canary }

Documents are listed once, as tasks. lm-eval requests log-likelihoods or answers from the trained model and scores each
document.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ...data.types import HarborTask
from ...errors import DataError, EvalError, EvsysError, show
from ...paths import in_project
from ...protocols import Row
from ...rollouts.engine import EngineLimits
from ...user_code import default_limit_s, user_code
from ..foreign_run import ForeignParams, ForeignRun, ForeignSuite
from ..lm_eval_model import open_lm
from ..predictions import Prediction
from ..scored_model import SamplerModel, Sampling, ScoredModel


class LmEvalParams(ForeignParams):
    """The tasks and their metric."""

    subject: str = Field(min_length=1)
    """Names of tasks or groups, separated by commas."""
    include: str | None = Field(default=None, min_length=1)
    """Folder of the project with custom task files (YAML)."""
    metric: str | None = Field(default=None, min_length=1)
    """Metric that is the score of a document; by default the first metric of its task."""
    num_fewshot: int | None = Field(default=None, ge=0)
    """Number of few-shot examples; by default that of the task."""


class LmEval(ForeignSuite[LmEvalParams]):
    """Evaluate with tasks of lm-eval, by log-likelihood or generation. For benchmarks only."""

    name: ClassVar[str] = "lm_eval"
    program: ClassVar[str] = "lm-eval"
    Config = LmEvalParams

    @property
    def version(self) -> str:
        """Version of the library, and a hash of the task files of the project."""
        if self.cfg.include is None:
            return self.version_with([])
        folder = in_project(self.cfg.include)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
        if not files:
            raise DataError(f"{folder}: there are no task files. Correct 'include='.")
        return self.version_with(files)

    def make_rows(self) -> Iterator[Row]:
        """Yield the documents that lm-eval evaluates."""
        if self.cfg.knobs:
            raise DataError(f"there is no param '{next(iter(self.cfg.knobs))}'. Use include, metric or num_fewshot.")
        with user_code(f"reading the tasks of '{self.cfg.subject}'", limit_s=default_limit_s(600)):
            loaded = self._load().items()
            rows = [self._row(name, task, at, doc) for name, task in loaded for at, doc in enumerate(task.eval_docs)]
        yield from rows

    async def run_tasks(
        self,
        model: ScoredModel,
        sampling: Sampling,
        tasks: Sequence[HarborTask],
        *,
        samples: int,
        limits: EngineLimits,
        folder: Path | None,
    ) -> ForeignRun:
        """Evaluate these documents with lm-eval."""
        if samples != 1:
            raise EvalError("lm-eval scores a document once, and samples is more. Set samples: 1.")
        if not isinstance(model, SamplerModel):
            raise EvalError("lm-eval needs log-likelihoods, and this model only answers. Score a trained model.")
        return await asyncio.to_thread(self._run, model, sampling, tasks)

    def _run(self, model: SamplerModel, sampling: Sampling, tasks: Sequence[HarborTask]) -> ForeignRun:
        loaded = self._load()
        numbers: dict[str, list[int]] = {}
        for task in tasks:
            name, _, number = task.task_id.rpartition("/")
            numbers.setdefault(name, []).append(int(number))
        greedy = any(loaded[name].OUTPUT_TYPE == "loglikelihood" for name in numbers)
        lm = open_lm(model.sampler, model.context_length, max_tokens=sampling.max_tokens, greedy=greedy)
        result = _library().simple_evaluate(
            lm,
            tasks=list(numbers),
            task_manager=self._manager,
            num_fewshot=self.cfg.num_fewshot,
            samples=numbers,
            bootstrap_iters=0,
            confirm_run_unsafe_code=False,
        )
        contents = self.contents(tasks)
        predictions: dict[str, Prediction] = {}
        for name, scored in result["samples"].items():
            for sample in scored:
                # A task with several filters returns each document several times; use its first filter.
                predictions.setdefault(f"{name}/{sample['doc_id']}", self._prediction(name, sample, contents))
        return ForeignRun("lm-eval", self.cfg.subject, model.ref, "success", list(predictions.values()))

    def _prediction(self, name: str, sample: dict[str, Any], contents: Mapping[str, Any]) -> Prediction:
        task_id = f"{name}/{sample['doc_id']}"
        if _hash(sample["doc"]) != contents[task_id]:
            raise EvalError(f"document {task_id} has changed since the tasks were listed. Remove .evsys/tasks.")
        metric = self.cfg.metric or sample["metrics"][0]
        value = sample.get(metric)
        if isinstance(value, bool | int | float) or hasattr(value, "item"):
            text = str(sample["filtered_resps"][0]) if isinstance(sample["filtered_resps"][0], str) else ""
            return Prediction(task_id, 0, "ok", float(value), text, info={"metric": metric})  # pyright: ignore[reportArgumentType]
        metrics = ", ".join(sample["metrics"])
        raise EvalError(f"task '{name}' gives {show(value)} as '{metric}'. Name another metric; it has {metrics}.")

    def _row(self, name: str, task: Any, at: int, doc: Any) -> Row:
        target = task.doc_to_target(doc)
        if task.OUTPUT_TYPE == "multiple_choice" and isinstance(target, int):
            target = task.doc_to_choice(doc)[target]
        row = self.make_row(f"{name}/{at}", str(task.doc_to_text(doc)), str(target).strip() or None, _hash(doc))
        return row | {"metadata": {"task": name}}

    @property
    def _manager(self) -> Any:
        return _manager_of(self.cfg.include and str(in_project(self.cfg.include)))

    def _load(self) -> dict[str, Any]:
        try:
            tasks: dict[str, Any] = self._manager.load(self.cfg.subject.split(","))["tasks"]
        except EvsysError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise DataError(f"lm-eval cannot load '{self.cfg.subject}': {reason}. Check with `lm-eval ls`.") from error
        return tasks


def _library() -> Any:
    os.environ.setdefault("TQDM_DISABLE", "1")  # lm-eval has no option to disable its progress bars
    return import_module("lm_eval")


@lru_cache(maxsize=8)
def _manager_of(include: str | None) -> Any:
    _library()
    return import_module("lm_eval.tasks").TaskManager(include_path=include)


def _hash(doc: Any) -> str:
    return hashlib.sha256(json.dumps(doc, sort_keys=True, default=str).encode()).hexdigest()[:16]
