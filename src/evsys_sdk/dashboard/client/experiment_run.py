"""Report one experiment with one run from your own training script.

    with ExperimentRun(client, experiment_name="sft_v9", recipe_kind="sft", run_config={"lr": 1e-5}) as run:
        for step in range(1, 1001):
            run.log_step(step, loss=...)
        run.log_eval(metrics={"pass_at_1": 0.83}, benchmark_id="...")
        run.set_best_score(0.83)
        run.set_conclusion("rank-8 LoRA wins")

On exit, the block reports the status: completed, cancelled, or failed with the exception.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from types import TracebackType
from typing import Any, Self

from ...errors import DataError
from ...record.jsonable import jsonable
from .client import DashboardClient


class ExperimentRun:
    """A context manager that reports one run; the run is created on entry."""

    def __init__(
        self,
        client: DashboardClient,
        *,
        experiment_name: str,
        recipe_kind: str = "",
        run_config: Mapping[str, Any] | None = None,
        run_name: str = "",
        seed: int | None = None,
        hypothesis: str = "",
        description: str = "",
        tags: Sequence[str] = (),
        experiment_id: str | None = None,
    ) -> None:
        """Runs with the same `experiment_name` belong to one experiment; `experiment_id` selects an existing one.

        Without a `run_name`, runs with the same config are seeds of one run.
        """
        self.client = client
        self._about: dict[str, Any] = {"hypothesis": hypothesis, "description": description, "tags": tags}
        self._recipe, self._config = recipe_kind, dict(run_config or {})
        self._name, self._seed = experiment_name, seed
        self._run_name = run_name or (f"run-{_short_hash(self._config)}" if self._config else "run")
        self._existing_experiment = experiment_id
        self._experiment_id = self._run_id = ""

    @property
    def experiment_id(self) -> str:
        return self._enter(self._experiment_id)

    @property
    def run_id(self) -> str:
        return self._enter(self._run_id)

    @property
    def generation_id(self) -> str:
        """Former name of `run_id`."""
        return self.run_id

    def __enter__(self) -> Self:
        if self._existing_experiment is None:
            plain = "".join(char if char.isalnum() or char in "._-" else "-" for char in self._name)[:80].strip(".-")
            id = f"{plain}-{_short_hash([self.client.connection.project, self._name])}".lstrip("-")
            self._experiment_id = self.client.create_experiment(
                self._name, recipe_kind=self._recipe, experiment_id=id, **self._about
            )
        else:
            self._experiment_id = self._existing_experiment
        self._run_id = self.client.create_run(
            self._experiment_id,
            name=self._run_name,
            recipe_kind=self._recipe,
            run_config=self._config,
            seed=self._seed,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
        status = "completed" if error is None else "cancelled" if stopped else "failed"
        ended = time.time()
        reason = "" if error is None else f"{type(error).__name__}: {error}"
        self.client.update_run(self.run_id, status=status, error=reason, ended=ended)
        if self._existing_experiment is None:  # an existing experiment does not end with this run
            status = "interrupted" if stopped else status
            self.client.update_experiment(self.experiment_id, status=status, ended=ended)
        self.client.flush()

    def log_step(self, step: int, metrics: Mapping[str, float] | None = None, **more: float) -> None:
        """Report the metrics of one step; does not wait for the server."""
        self.client.log_step_metric(self.run_id, step, metrics, **more)

    def log_eval(
        self,
        *,
        metrics: Mapping[str, Any],
        benchmark_id: str | None = None,
        name: str = "",
        split: str = "test",
        step: int = 0,
    ) -> str:
        """Report a scoring; return its id."""
        return self.client.log_eval_run(
            self.run_id, metrics=metrics, benchmark_id=benchmark_id, name=name, split=split, step=step
        )

    def log_predictions(self, predictions: Sequence[Mapping[str, Any]], **where: Any) -> None:
        """Report predictions of the scoring given by `name`, `split` and `step`."""
        self.client.log_predictions(self.run_id, predictions, **where)

    def update_run(self, **fields: Any) -> None:
        """Update fields of the run."""
        self.client.update_run(self.run_id, **fields)

    update_generation = update_run
    """Former name."""

    def update_experiment(self, **fields: Any) -> None:
        """Update fields of the experiment."""
        self.client.update_experiment(self.experiment_id, **fields)

    def set_best_score(self, score: float) -> None:
        """Report the best score of the experiment."""
        self.update_experiment(best_score=score, best_run=self._run_name)

    def set_conclusion(self, text: str) -> None:
        """Report the conclusion of the experiment."""
        self.update_experiment(conclusion_text=text)

    @contextmanager
    def benchmark(self, name: str, **metadata: Any) -> Generator[BenchmarkRun]:
        """Report scores of one benchmark: `with run.benchmark("routing") as scored: scored.log(pass_at_1=0.8)`."""
        id = self.client.record_benchmark(name, **metadata)
        yield BenchmarkRun(self, name, id)

    def _enter(self, id: str) -> str:
        if not id:
            raise DataError("this ExperimentRun was not entered. Write: with ExperimentRun(client, ...) as run: ...")
        return id


def _short_hash(value: Any) -> str:
    return sha256(json.dumps(jsonable(value), sort_keys=True).encode()).hexdigest()[:8]


class BenchmarkRun:
    """The scorings of one benchmark in a run."""

    def __init__(self, run: ExperimentRun, name: str, id: str) -> None:
        self.run, self.name, self.id = run, name, id

    def log(
        self, metrics: Mapping[str, float] | None = None, *, split: str = "test", step: int = 0, **more: float
    ) -> str:
        """Report a scoring on the benchmark."""
        both = {**(metrics or {}), **more}
        return self.run.log_eval(metrics=both, benchmark_id=self.id, name=self.name, split=split, step=step)

    def log_predictions(self, predictions: Sequence[Mapping[str, Any]], *, split: str = "test", step: int = 0) -> None:
        """Report the predictions of a scoring."""
        self.run.log_predictions(predictions, name=self.name, split=split, step=step)
