"""Counts the spend of one arm, and stops it when its own limit or the experiment's is reached.

It counts every token trained on, sampled or read through the arm's client, in rollouts, evaluations and baselines;
every answer of an inference client while the arm runs (judges, hosted baselines, `eval.inference`); time; and GPU time.
The step that reaches a limit is finished, a checkpoint is written, and `--resume` with a higher limit continues from
there.

    meter = meter_for(ledger, run, config)
    handles["training_client"] = meter.watch(handles["training_client"])
    with paying(meter): ...
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ..config.experiment import Budget, ExperimentConfig, Limits
from ..config.prices import Prices, Tariff, TokenUsage, backend_of, price_of
from ..config.run import RunConfig
from ..data.shapes import is_object
from ..log import get_logger
from ..protocols import RunResult
from ..record.ledger import Spend
from ..training.callback import Callback, EvalRecord, RunControl, RunInfo
from .ledger import STOP_PREFIX, SpendLedger, describe_deadline, find_exhausted, limits_anything
from .metered_client import MeteredClient

if TYPE_CHECKING:
    from ..backends.client import TrainingClient

_UNKNOWN_RESERVE = 0.1
"""The share of a time limit reserved for scoring of unknown duration."""
_UNWATCHED_S = 1.0
"""How long spend may stay in memory if no limit depends on it."""


class BudgetMeter(Callback):
    """The meter of one arm: a callback of its training, and the payer of its inference clients."""

    name = "budget"

    def __init__(
        self,
        ledger: SpendLedger,
        *,
        arm: str,
        experiment_budget: Limits | None = None,
        arm_budget: Limits | None = None,
        price: Tariff | None = None,
        prices: Prices | None = None,
        gpus: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`price` is that of the trained model, None if unknown; `prices` are those of other models.

        `gpus` returns the number of GPUs of the arm, once the backend has started.
        """
        self.ledger, self.arm, self.prices = ledger, arm, prices or {}
        limits = {"experiment": experiment_budget, "arm": arm_budget}
        self._limits = {owner: limit for owner, limit in limits.items() if limit and limits_anything(limit)}
        self._price, self._count_gpus, self._gpus = price, gpus, 0.0
        self._control: RunControl | None = None
        self._lock = threading.Lock()
        self._new = Spend()
        self._watches = False
        self._since = self._stepped = time.perf_counter()
        self._step_s, self._steps = 0.0, 0
        self._scored = time.perf_counter()
        self._scoring_s: dict[tuple[bool, str], float] = {}
        """The longest scoring of each set, of the model in training and of baselines."""
        self._total_steps: int | None = None

    def watch(self, client: TrainingClient) -> TrainingClient:
        """Wrap the training client so that it reports its usage immediately."""
        self._watches = True
        return MeteredClient(client, self.count, self._price)

    def seconds_left(self) -> float | None:
        """Seconds until a time limit is reached; None without one."""
        new = self._sum_unflushed().wall_s
        limits = {owner: limit.wall_s for owner, limit in self._limits.items() if limit.wall_s is not None}
        left = [limits["arm"] - self.spent().wall_s - new] if "arm" in limits else []
        left += [self.ledger.seconds_left(limits["experiment"], new)] if "experiment" in limits else []
        return min(left, default=None)

    def count(self, usage: TokenUsage) -> None:
        """Count usage of the trained model."""
        cost = None if self._price is None else self._price.of(usage)
        self._add(usage, cost)

    def pay(self, usage: TokenUsage, cost: Decimal | None) -> None:
        """Count an answer of another model; paid answers are written to disk immediately."""
        self._add(usage, cost)
        # None is not 0: an answer of unknown price was paid too.
        if cost != 0:
            self.flush("hosted")

    def spent(self) -> Spend:
        """The spend of the arm so far, over all attempts."""
        return self.ledger.of(self.arm)

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        self._control, self._gpus = control, self._count_gpus()
        self._steps, self._total_steps = info.steps_done, info.total_steps
        self._stepped = self._scored = time.perf_counter()
        self._check()

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        now = time.perf_counter()
        self._steps, self._step_s, self._stepped = step, max(self._step_s, now - self._stepped), now
        # For an algorithm without our client, use its reported token counts.
        if not self._watches:
            sampled, trained = int(metrics.get("tokens_sampled", 0)), int(metrics.get("tokens", 0))
            self.count(TokenUsage(0, sampled, trained_tokens=trained))
        if (reported := metrics.get("cost_usd", 0.0)) > 0:  # by a judge of rollouts without our client
            # Through the text, because a Decimal of the float has all its binary digits.
            self._add(TokenUsage(0, 0), Decimal(str(reported)))
        # Arms see each other's spend only in the file, so a shared limit needs a write at every step.
        if self._limits or time.perf_counter() - self._since >= _UNWATCHED_S:
            self.flush("step", step=step)

    def on_eval(self, record: EvalRecord) -> None:
        began, self._scored = max(self._scored, self._stepped), time.perf_counter()
        kind = (record.split == "baseline", f"{record.split}/{record.name}")
        self._scoring_s[kind] = max(self._scoring_s.get(kind, 0.0), self._scored - began)
        # A verifier without one of our clients reports its own cost; the same scoring counts once.
        costs = list(_iter_reported_costs(record.predictions))
        usd = sum(cost for cost in costs if cost is not None)
        if spend := Spend(usd=usd, unpriced=None in costs):
            owner = "" if record.split == "baseline" else self.arm  # a baseline is evaluated once for all arms
            self.ledger.add(self.arm, spend, key=f"{owner}/{record.split}/{record.name}/{record.step}", what="scoring")
        self.flush("eval")

    def on_run_end(self, result: RunResult) -> None:
        if result.status == "completed":
            self.ledger.add(self.arm, Spend(), what="tail", tail_s=round(time.perf_counter() - self._stepped, 4))
        self.flush("end")

    def close(self) -> None:
        self.flush("end")

    def flush(self, what: str, **notes: Any) -> None:
        """Write the spend since the last flush, and stop the run if it reaches a limit."""
        with self._lock:
            spend, self._new = self._sum_unflushed(), Spend()
            self._since = time.perf_counter()
        if spend:
            self.ledger.add(self.arm, spend, what=what, **notes)
        self._check()

    def _add(self, usage: TokenUsage, cost: Decimal | None) -> None:
        with self._lock:
            self._new += Spend(usage.trained_tokens, usage.output_tokens or 0, float(cost or 0), unpriced=cost is None)
        self._check()

    def _check(self) -> None:
        """Request a stop if a limit is reached, or if the budget cannot be checked."""
        # Keep the first stop reason.
        if self._control is None or self._control.stop_reason is not None:
            return
        try:
            reason = self._find_limit()
        except Exception as error:
            get_logger(__name__).error("the budget of '%s' cannot be checked: %s", self.arm, error)
            reason = f"it cannot be checked: {type(error).__name__}: {error}"
        if reason is not None:
            self._control.stop(f"{STOP_PREFIX}{reason}", interrupted=True)
        elif (late := self._find_deadline()) is not None:
            self._control.stop(late)

    def _find_deadline(self) -> str | None:
        """Why this step is the last one: another would use time reserved for scoring."""
        left_s = self.seconds_left()
        if left_s is None or (self._total_steps is not None and self._steps >= self._total_steps):
            return None
        limits = [limit.wall_s for limit in self._limits.values() if limit.wall_s is not None]
        scoring_s = {False: 0.0, True: 0.0}
        for (is_baseline, _), seconds in self._scoring_s.items():
            scoring_s[is_baseline] += seconds
        reserve = self.ledger.reserve_s(max(scoring_s.values())) or _UNKNOWN_RESERVE * min(limits)
        reserve += 2 * self._step_s  # a step may be in flight
        return describe_deadline(min(limits), left_s) if left_s <= reserve else None

    def _find_limit(self) -> str | None:
        with self._lock:
            new = self._sum_unflushed()
        spent = {"experiment": self.ledger.total, "arm": lambda: self.ledger.of(self.arm)}
        for owner, limits in self._limits.items():
            if reason := find_exhausted(limits, spent[owner]() + new):
                return reason if owner == "experiment" else f"this arm has used {reason}"
        return None

    def _sum_unflushed(self) -> Spend:
        wall = time.perf_counter() - self._since
        gpu = wall * self._gpus
        return self._new + Spend(
            usd=gpu / 3600 * (self._price.gpu_hour if self._price else 0.0), wall_s=wall, gpu_s=gpu
        )


def meter_for(ledger: SpendLedger, run: RunConfig, config: ExperimentConfig) -> BudgetMeter:
    """The meter of one arm; arms without limits are metered too, for the record."""
    budget = config.budget or Budget()
    price = price_of(run, budget)
    return BudgetMeter(
        ledger,
        arm=run.name,
        experiment_budget=budget,
        arm_budget=budget.per_arm,
        price=price,
        prices=budget.prices,
        gpus=lambda: gpus_held(run, price),
    )


def gpus_held(run: RunConfig, price: Tariff | None) -> float:
    """The number of GPUs of an arm: its `devices` for `local`, or one if billed by the hour."""
    backend = backend_of(run)
    if backend == "mock":
        return 0.0
    if backend == "local":
        torch: Any = sys.modules.get("torch")  # do not import torch only for this
        uses_gpu = run.backend.params.get("device") != "cpu"
        on_gpu = uses_gpu and torch is not None and torch.cuda.is_available()
        return float(run.backend.params.get("devices", 1)) if on_gpu else 0.0
    return 1.0 if price is not None and price.gpu_hour else 0.0


def _iter_reported_costs(predictions: Sequence[Mapping[str, Any]]) -> Iterator[float | None]:
    """Costs reported by verifiers, None if unknown; predictions with `usage` were metered before."""
    for prediction in predictions:
        info: Any = prediction.get("info")
        if is_object(info) and "cost_usd" in info and "usage" not in info:
            cost = info["cost_usd"]
            yield float(cost) if isinstance(cost, int | float) else None
