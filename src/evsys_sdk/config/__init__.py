"""Room 1: YAML text -> ExperimentConfig. Light to import; knows nothing of what the kinds do.

yaml_text   text -> plain data with line numbers
experiment, run, metadata, specs, matrix, search   the models
load        file -> config, with all problems at once
checks/     what is wrong with it, and what to do; `deep` asks whether the kinds exist and their params fit
"""

from .experiment import Budget, ExperimentConfig
from .load import dump_yaml, load_yaml, validate_yaml
from .matrix import MatrixSpec
from .metadata import BenchmarkEntry, Hypothesis, Metadata, SuccessMetric
from .run import ContinualConfig, ContinualStage, DataConfig, EvalConfig, ModelConfig, RunConfig, RunStage
from .search import Interval, SearchSpec
from .specs import (
    AlgorithmConfig,
    BackendConfig,
    CallbackSpec,
    DataStoreSpec,
    InferenceSpec,
    LauncherSpec,
    LogStoreSpec,
    MetricSpec,
    TransformSpec,
    VerifierSpec,
)

__all__ = [
    "AlgorithmConfig",
    "BackendConfig",
    "BenchmarkEntry",
    "Budget",
    "CallbackSpec",
    "ContinualConfig",
    "ContinualStage",
    "DataConfig",
    "DataStoreSpec",
    "EvalConfig",
    "ExperimentConfig",
    "Hypothesis",
    "InferenceSpec",
    "Interval",
    "LauncherSpec",
    "LogStoreSpec",
    "MatrixSpec",
    "Metadata",
    "MetricSpec",
    "ModelConfig",
    "RunConfig",
    "RunStage",
    "SearchSpec",
    "SuccessMetric",
    "TransformSpec",
    "VerifierSpec",
    "dump_yaml",
    "load_yaml",
    "validate_yaml",
]
