"""The generic `{kind, params}` blocks. They differ only in the registry that `kind` is looked up in."""

from __future__ import annotations

from typing import ClassVar

from .base import KindSpec


class AlgorithmConfig(KindSpec):
    """Which training recipe runs, and its hyperparameters."""

    registry: ClassVar[str] = "algorithm"


class BackendConfig(KindSpec):
    """Where the weights live while they are trained."""

    registry: ClassVar[str] = "backend"

    kind: str = "tinker"
    """Name of a registered backend: `mock`, `local`, `tinker` or one of your own."""


class TransformSpec(KindSpec):
    """One step of the data pipeline."""

    registry: ClassVar[str] = "transform"


class VerifierSpec(KindSpec):
    """How one completion is scored."""

    registry: ClassVar[str] = "verifier"


class MetricSpec(KindSpec):
    """How many scores become one number."""

    registry: ClassVar[str] = "metric"


class InferenceSpec(KindSpec):
    """How text is generated for evaluation."""

    registry: ClassVar[str] = "inference_client"


class DataStoreSpec(KindSpec):
    """Where data files are read from and written to."""

    registry: ClassVar[str] = "data_store"

    kind: str = "local"
    """Name of a registered data store: `local`, `in_memory` or one of your own."""


class LogStoreSpec(KindSpec):
    """Where metrics, hyperparameters and artifact pointers go."""

    registry: ClassVar[str] = "log_store"

    kind: str = "jsonl"
    """Name of a registered log store: `jsonl`, `tensorboard`, `multiplex` or one of your own."""


class CallbackSpec(KindSpec):
    """An observer of the training lifecycle: logging, early stopping, uploads."""

    registry: ClassVar[str] = "callback"


class LauncherSpec(KindSpec):
    """Where the arms of an experiment are executed."""

    registry: ClassVar[str] = "launcher"


class AgentSpec(KindSpec):
    """Which harness drives the policy."""

    registry: ClassVar[str] = "agent"

    kind: str = "chat"
    """Name of a registered agent: `chat`, `tools`, `bash` or one of your own."""


class EnvironmentSpec(KindSpec):
    """Where an agent's commands run."""

    registry: ClassVar[str] = "environment"

    kind: str = "none"
    """Name of a registered environment: `none`, `bwrap`, `unsafe_host` or one of your own."""
