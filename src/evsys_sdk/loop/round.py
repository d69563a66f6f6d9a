"""One round of learning: the experiment that is written for it, what became of it, and how what it shipped does in use.

The state of a round is computed from what is on disk: its experiment, the gate's decisions, and the deployments. The
loop itself notes nothing here, so a killed loop finds its place again.
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
    system: SystemConfig, made: dict[str, Any], live: Deployment | None, hypothesis: str, folder: Path
) -> Path:
    """Write the config of a round; the same round always gives the same file."""
    data = _read_template(system.experiment)
    data["name"] = f"{system.name}-round-{made['number']}"
    metadata: dict[str, Any] = data.setdefault("metadata", {})
    metadata.setdefault("hypothesis", hypothesis)
    given: Any = metadata.get("benchmark") or []
    entries = cast(list[dict[str, Any]], given if isinstance(given, list) else [given])
    holdout: dict[str, Any] = {"name": HOLDOUT, "id": made["benchmark"], "split": "test", "metrics": ["pass@1"]}
    if system.traces.max_tokens is not None:
        holdout["max_tokens"] = system.traces.max_tokens
    # The model before training is what is live, so this is how candidate and live weights answer the same tasks.
    metadata["benchmark"] = [{"models": ["base"], **entry} for entry in [*entries, holdout]]
    run: dict[str, Any] = data["run"]
    before: dict[str, Any] = run.get("data") or {}
    transforms = before.get("transforms")
    run["data"] = {"dataset_id": made["dataset"], **({"transforms": transforms} if transforms else {})}
    if live is not None:
        run["model"] = {**run["model"], "init_from_checkpoint": str(weights_of(live))}
    path = folder / f"round-{made['number']}.yaml"
    write_text(path, write_yaml(data), verbatim=True)
    return path


def load_candidate(path: Path) -> ExperimentConfig:
    """The experiment of a round, checked before anything is spent."""
    return validate_yaml(path, deep=True)


def weights_of(live: Deployment) -> Path:
    """The weights of a deployment, as a backend opens them."""
    folder = Path(live.location)
    return folder / WEIGHTS if (folder / WEIGHTS).is_dir() else folder


def _read_template(path: str) -> dict[str, Any]:
    found = read_yaml_file(Path(path)).data
    if not isinstance(found, dict) or not isinstance(cast(dict[str, Any], found).get("run"), dict):
        hint = "Give it one `run`; data, starting weights and the held-out tasks are filled in."
        raise ConfigError(Problem("the template of an experiment must have `run`", file=path, hint=hint))
    return cast(dict[str, Any], found)


type RoundStage = Literal["scaffold", "experiment", "gate", "deploy", "settled"]


@dataclass(frozen=True, slots=True)
class RoundState:
    """One round."""

    number: int
    made: dict[str, Any]
    """What sealing it gave."""
    stage: RoundStage
    """What is to be done next."""
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
            "traces": self.made["taken"],
            "rows": self.made["rows"],
            "tasks": self.made["tasks"],
            "experiment": self.config.name if self.config else None,
            "deployment": self.deployment.id if self.deployment else None,
            "usd": self.usd,
        }


def tell_round(made: dict[str, Any], folder: Path, given_up: str = "") -> RoundState:
    """How far a round has come; `given_up` is why it ended without a decision, where it did."""
    number, path = int(made["number"]), folder / f"round-{made['number']}.yaml"
    # From the first stage to the last: whatever is not there yet is what is to be done next.
    if not path.is_file():
        return RoundState(number, made, "scaffold")
    config = load_yaml(path)  # it was checked when it was written
    attempt = latest_attempt(config)
    record = ExperimentRecord(attempt) if attempt else None
    if given_up:
        return RoundState(number, made, "settled", "failed", given_up, config)
    if record is None or not record.is_finished:
        return RoundState(number, made, "experiment", config=config)
    usd = record.spend.get("usd", 0.0)
    try:
        source = find_source(str(record.folder))
    except DataError as error:
        return RoundState(number, made, "settled", "failed", str(error), config, usd=usd)
    decisions = find_decisions(source.sha256)
    if not decisions:
        return RoundState(number, made, "gate", config=config, source=source, usd=usd)
    # The gate may have been asked more than once, by a person say: its last word counts.
    decision = decisions[-1]
    if decision.get("verdict") != "pass":
        reason = first_failure(decision)
        return RoundState(number, made, "settled", "refused", reason, config, source, decision, usd=usd)
    deployments = Deployments.read()
    shipped = next((one for one in deployments.all if one.gate == decision.id), None)
    if shipped is None:
        return RoundState(number, made, "deploy", "", "", config, source, decision, usd=usd)
    back = next((one for one in deployments.rollbacks if one.replaced == shipped.id), None)
    outcome, reason = ("rolled back", back.reason) if back else ("shipped", "")
    return RoundState(number, made, "settled", outcome, reason, config, source, decision, shipped, usd)


# After it went live: whether what users think of the answers is as good as what it was shipped with.

_ERROR = 0.025


@dataclass(frozen=True, slots=True)
class LiveState:
    """What is known of a deployment from its traces."""

    state: Literal["waiting", "ok", "fell"]
    reason: str
    n: int = 0
    mean: float | None = None
    expected: float | None = None


def watch_live(deployment: Deployment, store: str, policy: Watch) -> LiveState:
    """Compare live rewards with the score that let a deployment pass the gate."""
    expected = _read_expected(deployment)
    since = Deployments.read().once_live.get(deployment.id, deployment.time or 0.0)
    rewards = [one["reward"] for one in TraceStore(store).read() if _is_of(one, deployment, since)]
    if expected is None:
        return LiveState(
            "waiting", f"{deployment.id} did not pass the gate, so there is nothing to hold it to.", len(rewards)
        )
    if len(rewards) < policy.min_scores:
        stated = f"{deployment.id} has {len(rewards)} live scores, {policy.min_scores} are needed."
        return LiveState("waiting", stated, len(rewards), None, expected)
    mean, variance = estimate_mean(rewards)
    high = mean + t_quantile(1 - _ERROR, len(rewards) - 1) * math.sqrt(variance)
    said = (
        f"{deployment.id} scores {mean:.3f} (at most {high:.3f}) live on {len(rewards)}, and {expected:.3f} when judged"
    )
    # Only where even the upper end is too low: a few bad scores must not take anything back.
    if high < expected - policy.drop:
        return LiveState("fell", f"{said}: more than {policy.drop:g} below.", len(rewards), mean, expected)
    return LiveState("ok", f"{said}.", len(rewards), mean, expected)


def estimate_mean(scores: Sequence[float]) -> tuple[float, float]:
    """The mean, and the variance of the mean; all alike does not mean that the next one is."""
    n = len(scores)
    return fmean(scores), max(variance(scores), 1 / (n + 1)) / n


def _is_of(trace: dict[str, Any], deployment: Deployment, since: float) -> bool:
    """Whether an answer was given by a deployment: it is named, or its name was asked since it went live."""
    if trace["reward"] is None:
        return False
    return trace["model"] == deployment.id or (trace["model"] == deployment.name and (trace["time"] or 0.0) >= since)


def _read_expected(deployment: Deployment) -> float | None:
    """The candidate's score on the target when the gate let it pass."""
    event = next((one for one in read_promotions() if one.kind == Kind.GATED and one.id == deployment.gate), None)
    return number(event.get("score")) if event is not None else None


def find_decisions(weights_sha256: str) -> list[Event]:
    """Decisions about some weights, oldest first."""
    gated = (event for event in read_promotions() if event.kind == Kind.GATED)
    return [event for event in gated if text(event.part("candidate").get("weights_sha256")) == weights_sha256]
