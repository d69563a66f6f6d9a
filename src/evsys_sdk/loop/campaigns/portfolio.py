"""A portfolio: the families of strategies that `evsys campaign run` works through, in a YAML file.

base: config.yaml                  # an ordinary experiment with a val and a test benchmark
families:
  sft: {}                          # the run of the base, unchanged
  rl: { algorithm: { kind: rl } }  # keys of a run that override those of the base
  prompt: configs/prompt.yaml      # or the run of another config
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from pydantic import Field, ValidationError

from ...config import ExperimentConfig, RunConfig, load_yaml
from ...config.base import Strict
from ...config.checks.problems import problems_in
from ...config.load import load_settings
from ...config.metadata import BASE_MODEL, BenchmarkEntry, Hypothesis, SuccessMetric
from ...errors import ConfigError, Problem, show
from ...experiment.arms.overrides import with_steps
from ...experiment.preflight import check_config
from ...history.campaigns.campaign import TAG
from ...paths import in_project

_NAME = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
_FRESH = 10_007
"""Added to the seed of the base, so that the confirmation shares no seed with the exploration."""


class PortfolioConfig(Strict):
    """Families of strategies, and how the budget is divided among them."""

    base: str
    """YAML file of an experiment: model, data, benchmarks, and the run that families vary."""
    families: dict[str, str | dict[str, Any]] = Field(min_length=1)
    """Name -> keys that override the base run, or the YAML file of a config with one run."""
    probe_share: float = Field(default=0.05, gt=0, le=0.5)
    """Share of the budget for the probe of each family."""
    confirm_share: float = Field(default=0.45, gt=0, lt=1)
    """Share of the budget reserved for the confirmation on the test set."""
    confirm_seeds: int = Field(default=3, ge=2, le=100)
    """Number of new seeds for the confirmation; fewer than 3 cannot support a claim."""
    seed: int = Field(default=0, ge=0)
    """Seed of Thompson sampling."""


class Portfolio:
    """Builds the experiments of a campaign with a portfolio."""

    def __init__(self, campaign: str, settings: PortfolioConfig, base: ExperimentConfig, place: str) -> None:
        self.campaign, self.settings, self.base, self._place = campaign, settings, base, place
        self.runs = {name: self._run(name, family) for name, family in settings.families.items()}
        entries = base.metadata.benchmark
        self.val = [entry for entry in entries if entry.split == "val"]
        self.test = [entry for entry in entries if entry.split != "val"]
        for split_entries, split in ((self.val, "val"), (self.test, "test")):
            if not split_entries:
                hint = f"Add an entry with `split: {split}` to the benchmarks of {settings.base}."
                raise ConfigError(Problem(f"a campaign needs tasks of the split {split}", "base", settings.base, hint))

    @classmethod
    def load(cls, campaign: str, path: str) -> Portfolio:
        """Load a portfolio from a file; raise if a family is malformed."""
        settings = load_settings(in_project(path), PortfolioConfig)
        return cls(campaign, settings, load_yaml(in_project(settings.base)), path)

    @property
    def metric(self) -> tuple[str, str]:
        """The metric for choosing a family, and its mode, `max` or `min`."""
        metric = self.base.metadata.success_metric
        if isinstance(metric, SuccessMetric):
            return metric.name.rpartition("/")[2], metric.mode
        return metric.rpartition("/")[2] if metric else (self.val[0].metrics or ["pass@1"])[0], "max"

    def check(self) -> None:
        """Raise if no family can be trained; one of several is blocked when its turn comes."""
        problems: list[Problem] = []
        for family in self.runs:
            if not (problems := check_config(self.explore(family)).problems):
                return
        raise ConfigError(problems)

    def explore(self, family: str) -> ExperimentConfig:
        """The experiment that explores a family: one seed, validation tasks only, no hypothesis."""
        entries = [_with_base(entry) for entry in self.val]
        return self._experiment(f"{self.campaign}-{family}", family, entries, hypothesis=None, n_repeats=1)

    def confirm(self, family: str, steps: int | None) -> ExperimentConfig:
        """The experiment that confirms a family: new seeds, compared with the untrained model on the test set."""
        hypothesis = self.base.metadata.hypothesis
        claim = Hypothesis(
            claim=f"{family} scores better than the untrained model.",
            direction="decrease" if self.metric[1] == "min" else "increase",
            min_effect=hypothesis.min_effect if isinstance(hypothesis, Hypothesis) else 0.0,
        )
        name, entries = f"{self.campaign}-confirmation", [*self.val, *(_with_base(entry) for entry in self.test)]
        seeds = self.settings.confirm_seeds
        config = self._experiment(name, family, entries, hypothesis=claim, n_repeats=seeds)
        config = config.model_copy(update={"base_seed": (self.runs[family].seed or 0) + _FRESH})
        with suppress(ConfigError):  # a recipe without max_steps trains until the deadline
            config = with_steps(config, steps) if steps else config
        return config

    def _experiment(
        self, name: str, family: str, entries: list[BenchmarkEntry], *, hypothesis: Hypothesis | None, n_repeats: int
    ) -> ExperimentConfig:
        campaign_tags = (f"{TAG}{self.campaign}", f"family:{family}")
        tags = [*(tag for tag in self.base.metadata.tags if not tag.startswith(TAG)), *campaign_tags]
        metadata = self.base.metadata.model_copy(update={"benchmark": entries, "hypothesis": hypothesis, "tags": tags})
        changes = {"name": name, "run": None, "runs": [self.runs[family]], "n_repeats": n_repeats, "search": None}
        plain = {"matrix": None, "base_run": None, "until": "all", "looks": None, "parent_experiment_id": None}
        return self.base.model_copy(update={**changes, **plain, "metadata": metadata})

    def _run(self, name: str, family: str | dict[str, Any]) -> RunConfig:
        where = f"families.{name}"
        if not _NAME.fullmatch(name) or name == "confirmation":
            hint = "Use a-z, 0-9, '-' and '_'."
            raise ConfigError(Problem(f"{show(name)} cannot name a family", where, name, hint, file=self._place))
        config = load_yaml(in_project(family)) if isinstance(family, str) else self.base
        first = config.all_runs()[0]
        if isinstance(family, str):
            return first.model_copy(update={"name": name})
        try:
            return RunConfig.model_validate({**first.model_dump(), **family, "name": name})
        except ValidationError as error:
            problems = problems_in(error, model=RunConfig, data=family)
            raise ConfigError([Problem(f"{where}: {problem}") for problem in problems]) from None


def _with_base(entry: BenchmarkEntry) -> BenchmarkEntry:
    return entry if BASE_MODEL in entry.models else entry.model_copy(update={"models": [*entry.models, BASE_MODEL]})
