"""`system.yaml`: a deployed system and the settings of its closed loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ..config.base import Strict
from ..config.building import check_params
from ..config.load import load_settings
from ..config.specs import InferenceSpec
from ..registry import get_inference
from .traces.store import check_name


class TracesSpec(Strict):
    """The source of traces, and their conversion to data."""

    store: str = Field(min_length=1)
    """Name of the store."""
    inbox: str | None = None
    """Files to import, as a pattern relative to the project: `inbox/*.jsonl`."""
    format: str = "auto"
    """Format of the files."""
    feedback: list[str] = []
    """Feedback that is the reward, as NAME or NAME=LOW:HIGH."""
    share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the newest traces that a round holds out."""
    min_reward: float | None = Field(default=0.5, ge=0, le=1)
    """Use only answers with at least this reward; null uses all."""
    verifier: str = "exact_match"
    """Verifier of the held-out tasks."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Token limit of an answer to a held-out task; by default that of benchmarks."""


class DecideSpec(Strict):
    """The rules for a training round."""

    min_new: int = Field(default=40, ge=2)
    """Fewest new traces for a round."""
    failure_rate: float = Field(default=0.1, ge=0, le=1)
    """Train if significantly more than this share of answers failed."""
    novelty: float = Field(default=0.3, ge=0, le=1)
    """Train if significantly more than this share of questions is unlike the trained ones."""
    drift: float = Field(default=0.05, ge=0, le=1)
    """Train if rewards fell significantly by more than this since the last round."""
    max_wait_days: float | None = Field(default=None, gt=0)
    """Train if the oldest new trace is older than this."""
    min_lessons: int = Field(default=8, ge=0)
    """Fewest good answers to new or failed questions for a round."""
    max_contradiction: float = Field(default=0.15, ge=0, le=1)
    """Leave out a kind of question if more than this share of its good answers differs from the settled answer, which
    is still liked."""
    opinion: InferenceSpec | None = None
    """A model that reviews a decision to train; it can only agree or object."""


class DeploySpec(Strict):
    """Deployment of candidates that pass the gate."""

    to: str = "openai_server"
    """Deployer."""
    name: str = "production"
    """Name of the deployment."""
    params: dict[str, Any] = {}
    """Params of the deployer."""


class LimitsSpec(Strict):
    """Limits that end the loop."""

    max_rounds: int | None = Field(default=None, ge=1)
    """Number of rounds."""
    max_usd: float | None = Field(default=None, ge=0)
    """Cost of all experiments in US dollars above which no new one starts."""


class SystemConfig(Strict):
    """A deployed system."""

    name: str
    """Name of the system, and prefix of its experiments: `<name>-round-1`."""
    traces: TracesSpec
    """Source of traces."""
    experiment: str
    """YAML file of the training experiment; data, starting weights and hold-out are filled in."""
    gate: str
    """YAML file of the gate policy."""
    decide: DecideSpec = DecideSpec()
    """Rules for a training round."""
    deploy: DeploySpec = DeploySpec()
    """Deployment."""
    approve: list[Literal["experiment", "deploy"]] = []
    """Steps that need human approval."""
    limits: LimitsSpec = LimitsSpec()
    """Limits of the loop."""


def load_system(path: str | Path) -> SystemConfig:
    """Read and check a system file."""
    system = load_settings(path, SystemConfig)
    check_name(system.name, "a system")
    check_name(system.traces.store, "a store of traces")
    if (opinion := system.decide.opinion) is not None:
        check_params(get_inference(opinion.kind), opinion.params, path="decide.opinion.params")
    return system
