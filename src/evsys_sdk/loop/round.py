"""One training round: its experiment, its state, and the live performance of its deployment.

The state of a round is computed from its experiment, the gate's decisions and the deployments on disk, so that a killed
loop continues at the right place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, variance
from typing import Any, Literal, cast

from ..config import ExperimentConfig, load_yaml, validate_yaml
from ..config.yaml_text import read_yaml_file
from ..config.yaml_write import write_yaml
from ..deploy.deployers.openai_server import WEIGHTS
from ..deploy.deployments import Deployment, Deployments
from ..deploy.gate import first_failure
from ..deploy.policy import Watch
from ..deploy.source import Source, find_source
from ..errors import ConfigError, DataError, Problem
from ..experiment.parents import latest_attempt
from ..experiment.statistics.student_t import t_quantile
from ..files import write_text
from ..record.events import Event, Kind
from ..record.project_files.journals import read_promotions
from ..record.reader import ExperimentRecord
from ..record.values import number, text
from .system import SystemConfig
from .traces.store import TraceStore

HOLDOUT = "holdout"
"""Label of the held-out tasks in the metrics: `test/holdout/pass@1`."""


def scaffold(
    system: SystemConfig, sealed: dict[str, Any], live: Deployment | None, hypothesis: str, folder: Path
) -> Path:
    """Write the config of a round; the same round always gives the same file."""
    data = _read_template(system.experiment)
    data["name"] = f"{system.name}-round-{sealed['number']}"
    metadata: dict[str, Any] = data.setdefault("metadata", {})
    metadata.setdefault("hypothesis", hypothesis)
    benchmark: Any = metadata.get("benchmark") or []
    entries = cast(list[dict[str, Any]], benchmark if isinstance(benchmark, list) else [benchmark])
    holdout: dict[str, Any] = {"name": HOLDOUT, "id": sealed["benchmark"], "split": "test", "metrics": ["pass@1"]}
    if system.traces.max_tokens is not None:
        holdout["max_tokens"] = system.traces.max_tokens
    # The base model has the live weights, so candidate and live weights answer the same tasks.
    metadata["benchmark"] = [{"models": ["base"], **entry} for entry in [*entries, holdout]]
    run: dict[str, Any] = data["run"]
    before: dict[str, Any] = run.get("data") or {}
    transforms = before.get("transforms")
    run["data"] = {"dataset_id": sealed["dataset"], **({"transforms": transforms} if transforms else {})}
    if live is not None:
        run["model"] = {**run["model"], "init_from_checkpoint": str(weights_of(live))}
    path = folder / f"round-{sealed['number']}.yaml"
    write_text(path, write_yaml(data), verbatim=True)
    return path


def load_candidate(path: Path) -> ExperimentConfig:
    """The experiment of a round, after deep validation."""
    return validate_yaml(path, deep=True)


def weights_of(live: Deployment) -> Path:
    """The folder of a deployment's weights, for a backend."""
    folder = Path(live.location)
    return folder / WEIGHTS if (folder / WEIGHTS).is_dir() else folder


def _read_template(path: str) -> dict[str, Any]:
    data = read_yaml_file(Path(path)).data
    if not isinstance(data, dict) or not isinstance(cast(dict[str, Any], data).get("run"), dict):
        hint = "Give it one `run`; data, starting weights and the held-out tasks are filled in."
        raise ConfigError(Problem("the template of an experiment must have `run`", file=path, hint=hint))
    return cast(dict[str, Any], data)


type RoundStage = Literal["scaffold", "experiment", "gate", "deploy", "settled"]


@dataclass(frozen=True, slots=True)
class RoundState:
    """The state of one round."""

    number: int
    sealed: dict[str, Any]
    """The result of sealing its traces."""
    stage: RoundStage
    """The next stage."""
    outcome: str = ""
    """`shipped`, `rolled back`, `refused` or `failed` once it is settled."""
    reason: str = ""
    config: ExperimentConfig | None = None
    source: Source | None = None
    decision: Event | None = None
    deployment: Deployment | None = None
    usd: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "round": self.number,
            "stage": self.stage,
            "outcome": self.outcome or None,
            "reason": self.reason or None,
            "traces": self.sealed["taken"],
            "rows": self.sealed["rows"],
            "tasks": self.sealed["tasks"],
            "experiment": self.config.name if self.config else None,
            "deployment": self.deployment.id if self.deployment else None,
            "usd": self.usd,
        }


def read_round_state(sealed: dict[str, Any], folder: Path, given_up: str = "") -> RoundState:
    """The state of a round; `given_up` is the reason if it was given up."""
    number, path = int(sealed["number"]), folder / f"round-{sealed['number']}.yaml"
    # From the first stage to the last: the first one without a result is next.
    if not path.is_file():
        return RoundState(number, sealed, "scaffold")
    config = load_yaml(path)  # checked when it was written
    attempt = latest_attempt(config)
    record = ExperimentRecord(attempt) if attempt else None
    if given_up:
        return RoundState(number, sealed, "settled", "failed", given_up, config)
    if record is None or not record.is_finished:
        return RoundState(number, sealed, "experiment", config=config)
    usd = record.spend.get("usd", 0.0)
    try:
        source = find_source(str(record.folder))
    except DataError as error:
        return RoundState(number, sealed, "settled", "failed", str(error), config, usd=usd)
    decisions = find_decisions(source.sha256)
    if not decisions:
        return RoundState(number, sealed, "gate", config=config, source=source, usd=usd)
    # The gate may have run more than once; its last decision counts.
    decision = decisions[-1]
    if decision.get("verdict") != "pass":
        reason = first_failure(decision)
        return RoundState(number, sealed, "settled", "refused", reason, config, source, decision, usd=usd)
    deployments = Deployments.read()
    shipped = next((deployment for deployment in deployments.all if deployment.gate == decision.id), None)
    if shipped is None:
        return RoundState(number, sealed, "deploy", "", "", config, source, decision, usd=usd)
    back = next((rollback for rollback in deployments.rollbacks if rollback.replaced == shipped.id), None)
    outcome, reason = ("rolled back", back.reason) if back else ("shipped", "")
    return RoundState(number, sealed, "settled", outcome, reason, config, source, decision, shipped, usd)


# Watching a live deployment: whether its rewards match the score at the gate.

_ERROR = 0.025


@dataclass(frozen=True, slots=True)
class LiveState:
    """The comparison of a deployment's live rewards with its score at the gate."""

    state: Literal["waiting", "ok", "fell"]
    reason: str
    n: int = 0
    mean: float | None = None
    expected: float | None = None


def watch_live(deployment: Deployment, store: str, policy: Watch) -> LiveState:
    """Compare live rewards with the score that let a deployment pass the gate."""
    expected = _read_expected(deployment)
    since = Deployments.read().once_live.get(deployment.id, deployment.time or 0.0)
    rewards = [trace["reward"] for trace in TraceStore(store).read() if _is_of(trace, deployment, since)]
    if expected is None:
        return LiveState(
            "waiting", f"{deployment.id} did not pass the gate, so there is nothing to hold it to.", len(rewards)
        )
    if len(rewards) < policy.min_scores:
        message = f"{deployment.id} has {len(rewards)} live scores, {policy.min_scores} are needed."
        return LiveState("waiting", message, len(rewards), None, expected)
    mean, variance = estimate_mean(rewards)
    high = mean + t_quantile(1 - _ERROR, len(rewards) - 1) * math.sqrt(variance)
    summary = (
        f"{deployment.id} scores {mean:.3f} (at most {high:.3f}) live on {len(rewards)}, and {expected:.3f} when judged"
    )
    # Only if the upper end of the interval is too low, so that a few bad scores cause no rollback.
    if high < expected - policy.drop:
        return LiveState("fell", f"{summary}: more than {policy.drop:g} below.", len(rewards), mean, expected)
    return LiveState("ok", f"{summary}.", len(rewards), mean, expected)


def estimate_mean(scores: Sequence[float]) -> tuple[float, float]:
    """The mean and its variance, which stays positive if all scores are equal."""
    n = len(scores)
    return fmean(scores), max(variance(scores), 1 / (n + 1)) / n


def _is_of(trace: dict[str, Any], deployment: Deployment, since: float) -> bool:
    """Whether an answer came from a deployment: by its id, or by its name since it went live."""
    if trace["reward"] is None:
        return False
    return trace["model"] == deployment.id or (trace["model"] == deployment.name and (trace["time"] or 0.0) >= since)


def _read_expected(deployment: Deployment) -> float | None:
    """The candidate's score at the gate; None if it did not pass one."""
    gated = (event for event in read_promotions() if event.kind == Kind.GATED)
    event = next((event for event in gated if event.id == deployment.gate), None)
    return number(event.get("score")) if event is not None else None


def find_decisions(weights_sha256: str) -> list[Event]:
    """The gate decisions about weights, oldest first."""
    gated = (event for event in read_promotions() if event.kind == Kind.GATED)
    return [event for event in gated if text(event.part("candidate").get("weights_sha256")) == weights_sha256]
