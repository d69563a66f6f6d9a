"""What became of each round, told from what is on disk: its experiment, the gate's decisions, and the deployments.

Nothing here is noted by the loop itself, so a loop that was killed anywhere finds out where it was by looking.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..config import ExperimentConfig, load_yaml
from ..deploy.deployments import Deployment, Deployments
from ..deploy.source import Source, find_source
from ..errors import DataError
from ..experiment.parents import latest_attempt
from ..record.events import Event
from ..record.reader import ExperimentRecord
from .watch import find_decisions, first_failure

type RoundStage = Literal["scaffold", "experiment", "gate", "deploy", "rollout", "settled"]


@dataclass(frozen=True, slots=True)
class RoundState:
    """One round."""

    number: int
    made: dict[str, Any]
    """What sealing it gave."""
    stage: RoundStage
    """What is to be done next."""
    outcome: str = ""
    """`shipped`, `rolled back`, `replaced`, `refused` or `failed` once it is settled."""
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
    decision = decisions[-1]
    if decision.get("verdict") != "pass":
        reason = first_failure(decision)
        return RoundState(number, made, "settled", "refused", reason, config, source, decision, usd=usd)
    deployments = Deployments.read()
    shipped = next((one for one in deployments.all if one.gate == decision.id), None)
    if shipped is None:
        return RoundState(number, made, "deploy", "", "", config, source, decision, usd=usd)
    if deployments.find_staged(shipped.name) == shipped:
        return RoundState(number, made, "rollout", "", "", config, source, decision, shipped, usd)
    back = next((one for one in deployments.rollbacks if one.replaced == shipped.id), None)
    outcome, reason = ("rolled back", back.reason) if back else ("shipped", "")
    if not back and shipped.id not in deployments.once_live:
        outcome, reason = "replaced", "something else went live before it answered all requests."
    return RoundState(number, made, "settled", outcome, reason, config, source, decision, shipped, usd)
