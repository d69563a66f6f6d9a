"""`system.yaml`: a system that is in use, and how it learns from what happens to it."""

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
    """Where its traces come from, and what is made of them."""

    store: str = Field(min_length=1)
    """Name of the store."""
    inbox: str | None = None
    """Files to import, as a pattern relative to the project: `inbox/*.jsonl`."""
    format: str = "auto"
    """How they are written."""
    feedback: list[str] = []
    """Feedback that is the reward, as NAME or NAME=LOW:HIGH."""
    share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the newest traces that a round holds out."""
    min_reward: float | None = Field(default=0.5, ge=0, le=1)
    """Learn from, and expect, only answers with at least this reward; null takes all."""
    verifier: str = "exact_match"
    """How answers to held-out tasks are judged."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest answer to a held-out task; by default what benchmarks allow."""


class DecideSpec(Strict):
    """When to learn."""

    min_new: int = Field(default=40, ge=2)
    """New traces below which nothing is learned, whatever they say."""
    failure_rate: float = Field(default=0.1, ge=0, le=1)
    """Learn when more than this share of answers fail, with confidence."""
    novelty: float = Field(default=0.3, ge=0, le=1)
    """Learn when more than this share of questions are unlike those that were trained on."""
    drift: float = Field(default=0.05, ge=0, le=1)
    """Learn when rewards fell by more than this since the last round, with confidence."""
    max_wait_days: float | None = Field(default=None, gt=0)
    """Learn when the oldest new trace has waited for so long."""
    min_lessons: int = Field(default=8, ge=0)
    """Do not learn from fewer good answers than this to questions that are new or that others failed at."""
    max_contradiction: float = Field(default=0.15, ge=0, le=1)
    """Do not learn when more than this share of the good answers to a known kind of question is another one than the
    settled one, while that is still liked."""
    opinion: InferenceSpec | None = None
    """A model that is asked after the rules said yes; it can only turn the yes into a no, or add words."""


class DeploySpec(Strict):
    """Where what passes the gate goes."""

    to: str = "openai_server"
    """Deployer."""
    name: str = "production"
    """Name that it is live under."""
    params: dict[str, Any] = {}
    """Of the deployer."""


class LimitsSpec(Strict):
    """Where the loop ends by itself."""

    max_rounds: int | None = Field(default=None, ge=1)
    """Rounds of learning."""
    max_usd: float | None = Field(default=None, ge=0)
    """What all of its experiments may cost; no new one is begun beyond."""


class SystemConfig(Strict):
    """A system that is in use."""

    name: str
    """Also the name of its experiments: `<name>-round-1`."""
    traces: TracesSpec
    """What happened."""
    experiment: str
    """YAML file of the experiment that learns; data, starting weights and hold-out are filled in."""
    gate: str
    """YAML file of the policy that candidates must pass."""
    decide: DecideSpec = DecideSpec()
    """When to learn."""
    deploy: DeploySpec = DeploySpec()
    """Where it goes."""
    approve: list[Literal["experiment", "deploy"]] = []
    """Steps that wait for a person."""
    limits: LimitsSpec = LimitsSpec()
    """Where it ends."""


def load_system(path: str | Path) -> SystemConfig:
    """The system in a file; files that it names must be there."""
    system = load_settings(path, SystemConfig)
    check_name(system.name, "a system")
    check_name(system.traces.store, "a store of traces")
    if (asked := system.decide.opinion) is not None:
        check_params(get_inference(asked.kind), asked.params, path="decide.opinion.params")
    return system
