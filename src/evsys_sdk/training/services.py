"""Services of a run for its recipe: one frozen, typed value next to the documented fields of the context.

The runner creates it. A context created by hand gets defaults from its documented fields.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..errors import TrainingError
from ..protocols import LogStore, Row, RunContext
from .callback import Callback, EvalRecord, Observers, RunControl

if TYPE_CHECKING:
    from ..backends.client import TrainingClient
    from ..config import ContinualStage, DataConfig
    from ..inference.renderer import Renderer
    from ..rollouts.engine import Verify
    from .loop import Evaluate
    from .scoring import BackgroundScoring

type ScoreStage = Callable[[ContinualStage, int], Awaitable[Mapping[str, float]]]
"""Scores the live model on the held-out rows of a stage, after a step."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The criterion for selecting a checkpoint."""

    metric: str
    mode: Literal["min", "max"] | None = None
    """Whether lower or higher is better; by default lower for losses, higher otherwise."""


@dataclass(frozen=True, slots=True)
class RunServices:
    """Services of a run for its recipe."""

    observers: Observers
    control: RunControl
    """Stop requests, which the recipe checks."""
    verify: Verify
    """Scores a rollout."""
    load_rows: Callable[[DataConfig], Sequence[Row]]
    """Loads rows that the context lacks, and records their source."""
    client: TrainingClient | None = None
    """Trains and samples the model; None on a backend without one."""
    renderer: Renderer | None = None
    """Converts conversations to tokens of the model."""
    seed: int = 0
    attempt: int = 1
    """Number of starts of the run."""
    resume: bool = False
    """Whether to continue from the last checkpoint."""
    evaluate: Evaluate | None = None
    """Scores the live model on the rows of `run.eval`."""
    score_stage: ScoreStage | None = None
    scoring: BackgroundScoring | None = None
    """Scores snapshots on benchmarks during training."""
    selection: Selection | None = None
    """The config's checkpoint selection; None leaves it to the recipe."""
    seconds_left: Callable[[], float | None] = lambda: None
    """Remaining time of the budget; None without a time limit."""
    watch: Callable[[TrainingClient], TrainingClient] = lambda client: client
    """Meters a further client of the run, e.g. of a second adapter."""


def services_of(ctx: RunContext) -> RunServices:
    """The services of a run; defaults for a context created by hand."""
    if ctx.services is not None:
        return ctx.services
    from ..inference.renderer import get_renderer

    client = ctx.extras.get("backend_handles", {}).get("training_client")
    run = next((run for run in ctx.config.all_runs() if run.name == ctx.run_id), None)
    return RunServices(
        observers=Observers([_LogMetrics(ctx.log_store)]),
        control=RunControl(),
        verify=_refuse_to_verify,
        load_rows=lambda data: _load_rows(ctx, data),
        client=client,
        renderer=get_renderer(client.tokenizer, run.model.renderer_name if run else None) if client else None,
        seed=run.seed if run else 0,
    )


class _LogMetrics(Callback):
    """Writes metrics to a log store."""

    name = "log_store"

    def __init__(self, log_store: LogStore) -> None:
        self._log_store = log_store

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._log_store.log_metrics(metrics, step)

    def on_eval(self, record: EvalRecord) -> None:
        self._log_store.log_metrics(record.named_metrics, record.step)


async def _refuse_to_verify(*_: Any) -> Any:
    raise TrainingError("a context without services has no verifier. Train through `run_experiment` or `evsys run`.")


def _load_rows(ctx: RunContext, data: DataConfig) -> list[Row]:
    from ..data import prepare_rows

    return list(prepare_rows(data, store=ctx.data_store))
