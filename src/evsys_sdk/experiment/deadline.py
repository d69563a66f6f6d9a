"""Check the deadline of an experiment, and reserve time for the conclusion."""

from __future__ import annotations

import time

from ..config import ExperimentConfig
from ..config.experiment import Budget
from ..errors import ConfigError, Problem
from ..record.ledger import EXPERIMENT, Spend
from ..spend.ledger import SpendLedger

_FINISH_SHARE = 0.02
"""Share of the time to reserve for the conclusion and the end of the process, at most `_FINISH_MOST_S`."""
_FINISH_MOST_S = 60.0
_PREPARED = 2.0
"""Minimum reserve as a multiple of the preparation time, because the conclusion reads the same data."""
_FINISH_LIMIT = 0.25
"""Maximum share of the time to reserve."""


class DeadlineTooShort(ConfigError):
    """The deadline leaves no time to score one run."""


def check_deadline(config: ExperimentConfig, ledger: SpendLedger, until: float | None) -> ExperimentConfig:
    """Apply a deadline to the time limit of the config; raise DeadlineTooShort if no run can be scored in time."""
    config = _limit_time(config, ledger, until)
    wall_s = config.budget.wall_s if config.budget else None
    if wall_s is None or ledger.reserve_s():  # a started experiment is scored and concluded even after the deadline
        return config
    if until is not None and until <= time.time():
        message = "is over, and nothing was started before it"
        raise DeadlineTooShort(Problem(message, "--until", time.ctime(until), "Give a time to come."))
    from .plan.plan import forecast_scoring

    if (seconds := forecast_scoring(config)) is None:
        return config
    if seconds >= wall_s:
        message = f"scoring one run takes about {seconds:.3g} s, and wall_s allows {wall_s:.3g} s"
        hint = "Allow more time, or score fewer tasks (n_tasks)."
        raise DeadlineTooShort(Problem(message, "budget.wall_s", wall_s, hint))
    ledger.add(EXPERIMENT, Spend(), what="forecast", forecast_s=seconds)
    return config


def find_training_end(
    config: ExperimentConfig, ledger: SpendLedger, until: float | None, prepared_s: float
) -> tuple[ExperimentConfig, float | None]:
    """Return the config with the time limit of the deadline, and the time at which training and scoring must end."""
    config = _limit_time(config, ledger, until)
    if config.budget is None or config.budget.wall_s is None:
        return config, None
    remaining_s = config.budget.wall_s - ledger.total().wall_s
    finish_s = max(min(_FINISH_SHARE * remaining_s, _FINISH_MOST_S), _PREPARED * prepared_s)
    return config, time.time() + remaining_s - min(finish_s, _FINISH_LIMIT * remaining_s)


def _limit_time(config: ExperimentConfig, ledger: SpendLedger, until: float | None) -> ExperimentConfig:
    """Set the time limit of the config to the time until the deadline, unless the config has a shorter one."""
    if until is None:
        return config
    budget = config.budget or Budget()
    wall_s = ledger.total().wall_s + max(until - time.time(), 0.001)
    budget = budget.model_copy(update={"wall_s": min(wall_s, budget.wall_s or wall_s)})
    return config.model_copy(update={"budget": budget})
