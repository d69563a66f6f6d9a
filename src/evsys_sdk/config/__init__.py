"""The config models: YAML text -> ExperimentConfig. Light to import; imports no extension.

yaml_text   text -> plain data with line numbers
experiment, run, metadata, specs, matrix, search   the models
load        file -> config, with all problems at once
checks/     problems with their remedies; `deep` checks that the kinds exist and their params fit
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
