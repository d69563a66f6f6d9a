"""The `{kind, params}` blocks, one per registry."""

from __future__ import annotations

from typing import ClassVar

from .base import KindSpec


class AlgorithmConfig(KindSpec):
    """The training recipe and its hyperparameters."""

    registry: ClassVar[str] = "algorithm"


class BackendConfig(KindSpec):
    """The engine that holds and trains the weights."""

    registry: ClassVar[str] = "backend"

    kind: str = "tinker"
    """Name of a registered backend: `mock`, `local`, `tinker` or your own."""


class TransformSpec(KindSpec):
    """One step of the data pipeline."""

    registry: ClassVar[str] = "transform"


class VerifierSpec(KindSpec):
    """The scoring of a completion."""

    registry: ClassVar[str] = "verifier"


class MetricSpec(KindSpec):
    """The aggregation of scores to one number."""

    registry: ClassVar[str] = "metric"


class InferenceSpec(KindSpec):
    """The client that generates text for evaluation."""

    registry: ClassVar[str] = "inference_client"


class DataStoreSpec(KindSpec):
    """The store of data files."""

    registry: ClassVar[str] = "data_store"

    kind: str = "local"
    """Name of a registered data store: `local`, `in_memory` or your own."""


class LogStoreSpec(KindSpec):
    """The store of metrics, hyperparameters and artifact pointers."""

    registry: ClassVar[str] = "log_store"

    kind: str = "jsonl"
    """Name of a registered log store: `jsonl`, `tensorboard`, `multiplex` or your own."""


class CallbackSpec(KindSpec):
    """An observer of the training lifecycle: logging, early stopping, uploads."""

    registry: ClassVar[str] = "callback"


class LauncherSpec(KindSpec):
    """The launcher that executes the arms of an experiment."""

    registry: ClassVar[str] = "launcher"


class AgentSpec(KindSpec):
    """The harness that drives the policy."""

    registry: ClassVar[str] = "agent"

    kind: str = "chat"
    """Name of a registered agent: `chat`, `tools`, `bash` or your own."""


class EnvironmentSpec(KindSpec):
    """The environment of an agent's commands."""

    registry: ClassVar[str] = "environment"

    kind: str = "none"
    """Name of a registered environment: `none`, `bwrap`, `unsafe_host` or your own."""
