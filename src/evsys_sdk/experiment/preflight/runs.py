"""Check the model, rows, recipes and evaluation of each run; parts that runs share are checked once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...algorithms.base import BaseAlgorithm
from ...config import DataConfig, ExperimentConfig, RunConfig
from ...errors import EvsysError, Problem
from ...eval.row_tasks import tasks_of_rows
from ...protocols import Algorithm, DataStore, Row, traits_of
from ...registry import get_data_store
from ..arms.recipe import build_algorithm, pair_stages
from ..plan.estimate import size_of_work
from .models import look_at_model, model_problems
from .recipes import StillClient, batch_problems, recipe_problems, verifier_problems
from .report import CheckReport
from .sources import PulledRows, pull_rows, try_rows

_NOT_FOR_ROWS = {"batch_size", "max_steps", "num_epochs", "learning_rate", "lora_rank", "warmup_steps", "weight_decay"}
"""Params that do not affect which rows a recipe accepts; most axes of a matrix are among them."""
_MOST_SECONDS = 6.0
"""Time limit for the rows of all runs; the runs themselves check the rest."""


@dataclass(slots=True)
class RunChecks:
    """Checks every run of a config."""

    config: ExperimentConfig
    report: CheckReport
    folder: Path
    """Run directory of recipes in `setup`."""
    pulled: dict[str, PulledRows] = field(default_factory=dict[str, PulledRows])
    """The rows that were read, by source."""
    algorithms: list[Algorithm] = field(default_factory=list[Algorithm])
    """One algorithm for each group of runs with the same `size_of_work`."""
    _seen: set[str] = field(default_factory=set[str])
    clients: dict[str, StillClient] = field(default_factory=dict[str, StillClient])
    _left_out: int = 0
    _until: float = field(default_factory=lambda: time.monotonic() + _MOST_SECONDS)

    def check(self) -> None:
        """Check all runs; parts that two runs share are checked once."""
        store = self._store()
        for index, run in enumerate(self.config.all_runs()):
            place = "run" if self.config.run is not None else f"runs[{index}]"
            if self._is_new("model", repr((run.model, run.backend, run.algorithm.kind))):
                with suppress(EvsysError):  # an unknown kind is reported elsewhere
                    self.report.add(model_problems(run, place))
            if self._is_new("work", size_of_work(run)):
                self._check_work(run, place, store)
        if self._left_out:
            message = f"{self._left_out} more kinds of rows were not looked at beforehand: the time is up"
            self.report.warn([Problem(message)])

    def _store(self) -> DataStore | None:
        spec = self.config.data_store
        try:
            return get_data_store(spec.kind)(**spec.arguments)
        except Exception:  # reported with the kinds and params
            return None

    def _is_new(self, what: str, key: str) -> bool:
        known = (mark := f"{what} {key}") in self._seen
        self._seen.add(mark)
        return not known

    def _check_work(self, run: RunConfig, place: str, store: DataStore | None) -> None:
        try:
            algorithm = build_algorithm(run)
        except EvsysError as error:
            if not self.report.problems:  # otherwise it is reported with the kinds and params
                with self.report.at(place, "Correct the params."):
                    raise error
            return
        except Exception:  # invalid params are reported elsewhere
            return
        self.algorithms.append(algorithm)
        if store is None:
            return
        client = self._look_at_model(run, algorithm, place)
        for stage, built in pair_stages(run, algorithm):
            if stage.data is None:
                continue
            at, data_at = f"{place}.{stage.path}", f"{place}.{stage.data_path}"
            pulled = self._pull(stage.data, data_at, store)
            recipe = getattr(built, "recipe", built)  # the TRL algorithm wraps a recipe
            if pulled is not None and isinstance(recipe, BaseAlgorithm):
                self.report.add(batch_problems(recipe, pulled, at))
                self._check_recipe(recipe, pulled, client, at, data_at)
        self._check_evaluation(run, place, store)

    def _look_at_model(self, run: RunConfig, algorithm: Algorithm, place: str) -> StillClient:
        key = repr((run.model, run.backend, run.algorithm.kind, traits_of(algorithm).lora_rank))
        if key not in self.clients:
            self.clients[key] = look_at_model(run, algorithm, self.report, place)
        return self.clients[key]

    def _check_recipe(
        self, recipe: BaseAlgorithm, pulled: PulledRows, client: StillClient, place: str, data_place: str
    ) -> None:
        params = recipe.cfg.model_dump(mode="json", exclude=_NOT_FOR_ROWS)
        # By id, because comparing rows is slow. Both objects live as long as the check, so that ids are unique.
        if not self._is_new(
            "recipe", f"{recipe.name} {params} {id(pulled)} {client.context_length} {id(client.tokenizer)}"
        ):
            return
        if time.monotonic() > self._until:
            self._left_out += 1
            return
        self.report.add(recipe_problems(recipe, pulled, client, place=place, data_place=data_place, folder=self.folder))

    def _check_evaluation(self, run: RunConfig, place: str, store: DataStore) -> None:
        for data, at in _iter_evaluated(run, place) if run.eval.enabled and run.eval.metrics else ():
            pulled = self._pull(data, at, store)
            if pulled is not None and pulled.rows and self._is_new("eval", f"{id(pulled)} {run.eval.n_samples}"):
                self.report.add(_evaluation_problems(pulled, run.eval.n_samples, at))

    def _pull(self, data: DataConfig, place: str, store: DataStore) -> PulledRows | None:
        key = data.model_dump_json()
        if key not in self.pulled:
            if time.monotonic() > self._until:
                self._left_out += 1
                return None
            self.pulled[key] = pull_rows(data, store)
            left_out = self.pulled[key].left_out
            self.report.warn(replace(problem, path=f"{place}.{problem.path}") for problem in left_out)
        found = self.pulled[key].problems
        self.report.add(replace(problem, path=f"{place}.{problem.path}") for problem in found)
        return self.pulled[key]


def _iter_evaluated(run: RunConfig, place: str) -> Iterator[tuple[DataConfig, str]]:
    """Yield the rows that `run.eval` scores, with their places: held-out rows, or the training rows if none are set."""
    for stage in run.stages():
        if stage.eval_data is not None:
            yield stage.eval_data, f"{place}.{stage.data_path.removesuffix('data')}eval_data"
    if run.eval.eval_data is not None:
        yield run.eval.eval_data, f"{place}.eval.eval_data"
    elif run.data is not None:
        yield run.data, f"{place}.data"


def _evaluation_problems(pulled: PulledRows, n_samples: int | None, place: str) -> Iterator[Problem]:
    scored = PulledRows(pulled.data, pulled.rows[:n_samples], pulled.origins[:n_samples])
    problems = try_rows(scored, _make_tasks, place)
    yield from problems or verifier_problems(scored, place)


def _make_tasks(rows: list[Row]) -> EvsysError | None:
    try:
        tasks_of_rows(rows)
    except EvsysError as error:
        return error
    return None
