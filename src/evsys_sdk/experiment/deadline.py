"""The deadline of an experiment: refused if too short, and early enough that the conclusion is written in time."""

from __future__ import annotations

import time

from ..config import ExperimentConfig
from ..config.experiment import Budget
from ..errors import ConfigError, Problem
from ..record.ledger import EXPERIMENT, Spend
from ..spend.ledger import SpendLedger

_FINISH_SHARE = 0.02
"""Share of the time that is kept for the conclusion and the end of the process ..."""
_FINISH_MOST_S = 60.0
_PREPARED = 2.0
"""... or so many times what the preparation took: it reads the same data on the same loaded machine ..."""
_FINISH_LIMIT = 0.25
"""... and never more than this share."""


class DeadlineTooShort(ConfigError):
    """A deadline leaves no time to score one run."""


def check_deadline(config: ExperimentConfig, ledger: SpendLedger, until: float | None) -> ExperimentConfig:
    """The config with the limit of time that a deadline sets; one that leaves no time to score a run is refused."""
    config = _limit_time(config, ledger, until)
    wall_s = config.budget.wall_s if config.budget else None
    if wall_s is None or ledger.reserve_s():  # what was started before is scored and concluded however late it is
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
    """The config with what is left of its time, and when training and scoring have to end."""
    config = _limit_time(config, ledger, until)
    if config.budget is None or config.budget.wall_s is None:
        return config, None
    left = config.budget.wall_s - ledger.total().wall_s
    finish_s = max(min(_FINISH_SHARE * left, _FINISH_MOST_S), _PREPARED * prepared_s)
    return config, time.time() + left - min(finish_s, _FINISH_LIMIT * left)


def _limit_time(config: ExperimentConfig, ledger: SpendLedger, until: float | None) -> ExperimentConfig:
    """Make the time until a deadline the limit of time, unless there is a shorter one."""
    if until is None:
        return config
    budget = config.budget or Budget()
    wall_s = ledger.total().wall_s + max(until - time.time(), 0.001)
    budget = budget.model_copy(update={"wall_s": min(wall_s, budget.wall_s or wall_s)})
    return config.model_copy(update={"budget": budget})
