"""Results of other evaluation programs, as scores by task.

    run = read_inspect_log(Path("logs/a.eval"))
    run.to_result().metrics["mean_reward"]      # with its standard error, as for our own benchmarks

An `.eval` file is an archive. Its summaries suffice, so inspect_ai is not imported.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from pydantic import Field

from ..config.base import Strict
from ..data.shapes import is_object
from ..data.types import HarborTask, InProcessVerifier
from ..errors import DataError, EvalError, MissingExtraError, show
from ..lazy import import_extra
from ..registry import get_verifier, registry
from .metric import build_metric
from .predictions import Prediction
from .scores import EvalResult, compute_scores
from .verifier import BaseVerifier

if TYPE_CHECKING:
    from zipfile import ZipFile

    from ..rollouts.engine import EngineLimits
    from .scored_model import Sampling, ScoredModel

_ZSTANDARD = 93
_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Correct, partial, incorrect, no answer; the values of Inspect's `value_to_float`."""


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """The scores of a model in another program."""

    program: str
    task: str
    model: str
    status: str
    """`success`, or why the run did not finish."""
    predictions: list[Prediction]
    """One per sample and epoch; a failed sample has no reward."""

    @property
    def tasks_hash(self) -> str:
        """Hash of the samples' ids and content, equal for runs over the same samples."""
        content = sorted({(prediction.task_id, prediction.task) for prediction in self.predictions})
        return hashlib.sha256(json.dumps([self.task, content]).encode()).hexdigest()

    @property
    def by_task(self) -> dict[str, float]:
        """The mean reward of each scored sample."""
        rewards_by_task: dict[str, list[float]] = {}
        for prediction in self.predictions:
            if prediction.reward is not None:
                rewards_by_task.setdefault(prediction.task_id, []).append(prediction.reward)
        return {task: math.fsum(rewards) / len(rewards) for task, rewards in rewards_by_task.items()}

    def to_result(self) -> EvalResult:
        """The run as a benchmark result with the mean reward."""
        epochs = max((prediction.sample for prediction in self.predictions), default=0) + 1
        result = EvalResult(self.task, self.tasks_hash, self.model, self.predictions, samples=epochs)
        return compute_scores(result, [], {"mean_reward": build_metric("mean_reward")})


class ForeignParams(Strict):
    """Selects tasks of another program."""

    subject: str = Field(min_length=1)
    """Task names in the program's spelling."""
    knobs: dict[str, Any] = {}
    """Arguments of the task."""
    content: str = ""
    """Hash of the task's content, to detect a changed task."""


class ForeignSuite[P: ForeignParams](BaseVerifier[P]):
    """A task source whose program solves and scores its own tasks with our model."""

    name: ClassVar[str]
    deterministic: ClassVar[bool] = False
    program: ClassVar[str]
    """Name of the program and of its package."""

    def version_with(self, files: Sequence[Path]) -> str:
        """Version of the program, and a hash of files of the project."""
        from importlib.metadata import version  # here, because it takes 10 ms to import

        version_of_program = version(self.program)
        content = b"".join(path.read_bytes() for path in files)
        return f"{version_of_program}-{hashlib.sha256(content).hexdigest()[:12]}" if files else version_of_program

    def make_row(self, task_id: str, instruction: str, expected: Any, content: str | None) -> dict[str, Any]:
        """A task of the program as a row."""
        params = self.cfg.model_dump(exclude_defaults=True) | {"content": content}
        verifier = {"kind": "in_process", "fn_name": self.name, "expected": expected, "params": params}
        return {"task_id": task_id, "instruction": instruction, "verifier": verifier}

    def contents(self, tasks: Sequence[HarborTask]) -> dict[str, Any]:
        """Task -> hash of its content when the tasks were listed."""
        return {task.task_id: getattr(task.verifier, "params", {}).get("content") for task in tasks}

    def verify(self, *, completion: str) -> NoReturn:
        """Refuse to score one answer: the program scores its own tasks."""
        raise EvalError(f"tasks of {self.program} are scored by {self.program} itself. Use them as a benchmark.")

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
        """Score the model on these tasks, `samples` times each; `folder` receives the program's logs."""
        raise NotImplementedError


def find_suite(tasks: Sequence[HarborTask]) -> ForeignSuite[Any] | None:
    """The program that runs these tasks; None for tasks of our own engine."""
    names = {name for name in {_source_of(task) for task in tasks} if _runs_tasks(name)}
    verifiers = [task.verifier for task in tasks if _source_of(task) in names]
    params = [
        {key: value for key, value in verifier.params.items() if key != "content"}
        for verifier in verifiers
        if isinstance(verifier, InProcessVerifier)
    ]
    if not params:
        return None
    if len(names) > 1 or len(params) < len(tasks) or any(other != params[0] for other in params):
        raise DataError("the tasks belong to several programs. Make an entry of metadata.benchmark for each of them.")
    return get_verifier(names.pop())(**params[0])


def _source_of(task: HarborTask) -> str:
    return task.verifier.fn_name if isinstance(task.verifier, InProcessVerifier) else ""


def _runs_tasks(name: str) -> bool:
    return name in registry("verifier") and hasattr(get_verifier(name), "run_tasks")


def read_inspect_log(path: Path, *, scorer: str | None = None) -> ForeignRun:
    """Read a log of inspect_ai; `scorer` is a name, or `name/key` for a scorer with several values."""
    try:
        return _run_of(*_read_log(path), scorer or "")
    except MissingExtraError:
        raise
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except Exception as error:  # the file may hold anything
        remedy = "Name a finished .eval or .json log of inspect_ai"
        raise DataError(f"{path}: it cannot be read: {type(error).__name__}: {error}. {remedy}.") from error


def _run_of(header: Mapping[str, Any], summaries: Sequence[Mapping[str, Any]], scorer: str) -> ForeignRun:
    name, _, key = scorer.partition("/")
    names = list(dict.fromkeys(name for sample in summaries for name in _part(sample, "scores")))
    failed = any(sample.get("error") for sample in summaries)
    if not names and not failed:
        raise DataError("none of its samples has a score. Score it first with `inspect score`.")
    if names and (name not in names if name else len(names) > 1):
        raise DataError(f"it has scores of {', '.join(names)}. Name one of them as the scorer.")
    predictions = [_prediction(sample, name or "".join(names), key) for sample in summaries]
    if not failed and all(prediction.reward is None for prediction in predictions):
        raise DataError(f"sample '{predictions[0].task_id}': {predictions[0].error}. Name another scorer.")
    info = header["eval"]
    return ForeignRun("inspect_ai", str(info["task"]), str(info["model"]), str(header["status"]), predictions)


def _read_log(path: Path) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    if path.suffix == ".json":
        log = json.loads(path.read_bytes())
        return log, log.get("samples") or []
    from zipfile import ZipFile

    with ZipFile(path) as archive:
        header = json.loads(_read_member(path, archive, "header.json"))
        return header, json.loads(_read_member(path, archive, "summaries.json"))


def _read_member(path: Path, archive: ZipFile, name: str) -> bytes:
    """One file of an archive; Inspect uses Zstandard, which Python 3.12's zipfile cannot read."""
    info = archive.getinfo(name)
    if info.compress_type != _ZSTANDARD:
        return archive.read(info)
    zstandard = import_extra("zstandard", extra="inspect", needed_by="reading .eval logs")
    with path.open("rb") as file:
        file.seek(info.header_offset)
        sizes = struct.unpack("<26xHH", file.read(30))  # lengths of name and extra field, after the header
        file.seek(sum(sizes), 1)
        packed = file.read(info.compress_size)
    return zstandard.ZstdDecompressor().decompressobj().decompress(packed)


def _prediction(sample: Mapping[str, Any], scorer: str, key: str) -> Prediction:
    score: dict[str, Any] = _part(sample, "scores").get(scorer) or {}
    reward, problem = None, sample.get("error")
    if is_object(problem):
        problem = problem.get("message")
    elif not problem and not score:
        problem = f"it has no score of '{scorer}'"
    elif not problem and (reward := _reward(sample, score["value"], scorer, key)) is None:
        problem = f"its score {show(score['value'])} of '{scorer}' is not a number"
    content = json.dumps([sample.get("input"), sample.get("target")], sort_keys=True)
    return Prediction(
        task_id=str(sample["id"]),
        sample=int(sample.get("epoch", 1)) - 1,
        status="infra" if problem else "ok",
        reward=reward,
        text=str(score.get("answer") or ""),
        error=str(problem) if problem else None,
        seconds=float(sample.get("total_time") or 0.0),
        tokens=sum(int(usage.get("total_tokens") or 0) for usage in _part(sample, "model_usage").values()),
        task=hashlib.sha256(content.encode()).hexdigest(),
    )


def _part(sample: Mapping[str, Any], name: str) -> dict[str, Any]:
    return sample.get(name) or {}


def _reward(sample: Mapping[str, Any], value: Any, scorer: str, key: str) -> float | None:
    """A score as a number, by Inspect's rules; None if it is not a number."""
    score: Any = value
    if is_object(value):
        values: dict[str, Any] = value
        if key not in values:
            choices = f"'{scorer}' gives {', '.join(values)}. Name one as '{scorer}/{next(iter(values), 'KEY')}'."
            raise DataError(f"sample '{sample['id']}': {choices}")
        score = values[key]
    if isinstance(score, str):
        words = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
        score = _LETTERS.get(score, words.get(score.lower(), score))
    try:
        number = float(score)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
