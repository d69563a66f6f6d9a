"""Limits on what an experiment and each of its arms may spend, and the observer that enforces them.

Counted are: every token that is trained on or sampled through the arm's client (rollouts, evaluations, baselines),
priced by `budget.prices` or the built-in table; what judges and other hosted models report as their cost; time; and GPU
time. The step that reaches a limit is the last one: it is finished, a checkpoint is written, and `--resume` with a
higher limit goes on from there.

    ledger = open_ledger(experiment_dir)
    meter = meter_for(ledger, run, config)                                          # one per arm
    handles["training_client"] = meter.watch(handles["training_client"])
    if config.budget and (reason := exhausted(config.budget, ledger.total())): ...  # before an arm starts
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..config.experiment import Budget, ExperimentConfig, Limits, TrainingPrice
from ..config.metadata import BASE_MODEL
from ..config.prices import price_of
from ..config.run import RunConfig
from ..log import get_logger
from ..protocols import RunResult
from ..record.ledger import Spend
from ..training.callback import Callback, EvalRecord, RunControl, RunInfo
from .metered_client import MeteredClient, Use
from .pricing import gpus_held
from .spend import SpendLedger

if TYPE_CHECKING:
    from ..backends.client import TrainingClient

LIMITED = ("usd", "tokens", "wall_s", "gpu_s")
"""What a limit can be set on."""
_UNWATCHED_S = 1.0
"""How long spend may stay in memory where no limit depends on it."""
STOP_PREFIX = "budget: "
"""How the reason of a stop by budget begins."""


def exhausted(limits: Limits | None, spend: Spend) -> str | None:
    """Which limit is reached, e.g. `tokens 10,240 of 10,000`; None while there is something left."""
    for name in LIMITED if limits else ():
        limit, spent = getattr(limits, name), getattr(spend, name)
        if limit is not None and spent >= limit:
            return f"{name} {amount(name, spent)} of {amount(name, limit)}"
    return None


def amount(name: str, value: float) -> str:
    """A number of dollars, tokens or seconds as people read it."""
    return f"{value:,.0f}" if name == "tokens" else f"{value:,.4g}" if value < 1000 else f"{value:,.1f}"


def is_budget_stop(reason: str | None) -> bool:
    """Whether a run was stopped by its budget."""
    return (reason or "").startswith(STOP_PREFIX)


class BudgetMeter(Callback):
    """Counts what one arm spends and stops it when a limit of its own or of the experiment is reached."""

    name = "budget"

    def __init__(
        self,
        ledger: SpendLedger,
        *,
        arm: str,
        experiment_budget: Limits | None = None,
        arm_budget: Limits | None = None,
        price: TrainingPrice | None = None,
        gpus: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`price` is None where it is not known; `gpus` says, once the backend is there, how many the arm holds."""
        self.ledger, self.arm = ledger, arm
        limits = {"experiment": experiment_budget, "arm": arm_budget}
        self._limits = {whose: found for whose, found in limits.items() if found is not None and _limits_any(found)}
        self._price, self._count_gpus, self._gpus = price, gpus, 0.0
        self._control: RunControl | None = None
        self._lock = threading.Lock()
        self._use = Use()
        self._usd = 0.0
        self._watches = False
        self._since = time.perf_counter()

    def watch(self, client: TrainingClient) -> TrainingClient:
        """The client to train through: it counts exactly what is asked of the backend, and does so at once."""
        self._watches = True
        return MeteredClient(client, self._count)

    def spent(self) -> Spend:
        """What the arm has spent so far, over all attempts to run it."""
        return self.ledger.of(self.arm)

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        self._control, self._gpus = control, self._count_gpus()
        self._check()

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._watches:
            self._count(Use(int(metrics.get("tokens", 0)), int(metrics.get("tokens_sampled", 0))))
        self._usd += max(metrics.get("cost_usd", 0.0), 0.0)  # what a judge of rollouts reports
        if self._limits or time.perf_counter() - self._since >= _UNWATCHED_S:
            self.flush("step", step=step)

    def on_eval(self, record: EvalRecord) -> None:
        # Shared by all arms where the scored model is: a baseline is asked once for all of them.
        owner = "" if record.split == "baseline" else self.arm
        costs = [cost for prediction in record.predictions for cost in _judge_costs(prediction)]
        tokens = _hosted_tokens(record)
        if tokens:
            costs.append(None)  # what a hosted model took is on record, what it cost is not
        usd = None if None in costs else sum(cost for cost in costs if cost is not None)
        self.add_scoring(f"{owner}/{record.split}/{record.name}/{record.step}", tokens=tokens, usd=usd)

    def add_scoring(self, key: str, *, tokens: int = 0, usd: float | None = 0.0) -> None:
        """Count what hosted models (judges, `kind:model` baselines) took for a scoring; the same key counts once."""
        spend = Spend(tokens_sampled=tokens, usd=usd or 0.0, unpriced=usd is None)
        if spend:
            self.ledger.add(self.arm, spend, key=key, what="scoring")
        self.flush("eval")

    def on_run_end(self, result: RunResult) -> None:
        self.flush("end")

    def close(self) -> None:
        self.flush("end")

    def flush(self, what: str, **notes: Any) -> None:
        """Write what has been counted since the last time, and stop the run where that reaches a limit."""
        with self._lock:
            spend, self._use, self._usd = self._unflushed(), Use(), 0.0
            self._since = time.perf_counter()
        if spend:
            self.ledger.add(self.arm, spend, what=what, **notes)
        self._check()

    def _count(self, use: Use) -> None:
        with self._lock:
            self._use += use
        self._check()

    def _check(self) -> None:
        """Ask for a stop where a limit is reached; a budget that cannot be watched is a reason to stop, too."""
        if self._control is None or self._control.stop_reason is not None:
            return
        try:
            reason = self._reached()
        except Exception as error:
            get_logger(__name__).error("the budget of '%s' cannot be watched: %s", self.arm, error)
            reason = f"it cannot be watched: {type(error).__name__}: {error}"
        if reason is not None:
            self._control.stop(f"{STOP_PREFIX}{reason}", interrupted=True)

    def _reached(self) -> str | None:
        with self._lock:
            new = self._unflushed()
        spent = {"experiment": self.ledger.total, "arm": lambda: self.ledger.of(self.arm)}
        for whose, limits in self._limits.items():
            if reason := exhausted(limits, spent[whose]() + new):
                return reason if whose == "experiment" else f"this arm has used {reason}"
        return None

    def _unflushed(self) -> Spend:
        wall = time.perf_counter() - self._since
        gpu = wall * self._gpus
        price = self._price or TrainingPrice()
        per_million = (
            self._use.trained * price.train_per_million
            + self._use.sampled * price.sample_per_million
            + self._use.read * price.prefill_per_million
        )
        usd = per_million / 1e6 + gpu / 3600 * price.gpu_hour + self._usd
        unpriced = self._price is None and self._use != Use()
        return Spend(self._use.trained, self._use.sampled, usd, wall, gpu, unpriced)


def meter_for(ledger: SpendLedger, run: RunConfig, config: ExperimentConfig) -> BudgetMeter:
    """The meter of one arm; one without any limit is metered too, because its record says what it spent."""
    budget = config.budget or Budget()
    price = price_of(run, budget)
    return BudgetMeter(
        ledger,
        arm=run.name,
        experiment_budget=budget,
        arm_budget=budget.per_arm,
        price=price,
        gpus=lambda: gpus_held(run, price),
    )


def _limits_any(limits: Limits) -> bool:
    return any(getattr(limits, name) is not None for name in LIMITED)


def _judge_costs(prediction: Mapping[str, Any]) -> list[float | None]:
    """What a judge's opinion of one prediction cost; None where its price is not known, nothing without a judge."""
    info: Any = prediction.get("info")
    if not isinstance(info, Mapping) or "cost_usd" not in info:
        return []
    cost: Any = info["cost_usd"]  # pyright: ignore[reportUnknownVariableType]
    return [float(cost) if isinstance(cost, int | float) else None]


def _hosted_tokens(record: EvalRecord) -> int:
    """Tokens of a baseline that another client answered for, read and written; the arm's own client counts itself."""
    kind = record.name.rpartition("/")[2].partition(":")[0]
    if record.split != "baseline" or kind in (BASE_MODEL, "mock"):
        return 0
    return sum(int(prediction.get("tokens", 0)) for prediction in record.predictions)
