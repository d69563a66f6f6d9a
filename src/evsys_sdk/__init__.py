"""evsys-sdk: one YAML file is one LLM-training experiment.

The public names are importable from here and loaded on first use, grouped in the order of the data flow. Other
names may move.
"""

from __future__ import annotations

import os
from importlib import import_module

from ._version import __version__

TYPE_CHECKING = False  # without `typing`, which is half of the time of importing this
if TYPE_CHECKING:  # `X as X` makes X public for type checkers
    from .algorithms.loop_run import LoopRun as LoopRun
    from .algorithms.rl import group_advantages as group_advantages
    from .algorithms import (
        RL as RL,
        SFT as SFT,
        BaseAlgorithm as BaseAlgorithm,
        TrainingConfig as TrainingConfig,
    )
    from .backends import (
        AdamParams as AdamParams,
        Capabilities as Capabilities,
        Datum as Datum,
        ModelSpec as ModelSpec,
        SamplingClient as SamplingClient,
        SamplingParams as SamplingParams,
        TrainingClient as TrainingClient,
        numpy_loss as numpy_loss,
    )
    from .config import (
        AlgorithmConfig as AlgorithmConfig,
        BackendConfig as BackendConfig,
        DataConfig as DataConfig,
        DataStoreSpec as DataStoreSpec,
        EvalConfig as EvalConfig,
        ExperimentConfig as ExperimentConfig,
        InferenceSpec as InferenceSpec,
        LogStoreSpec as LogStoreSpec,
        MetricSpec as MetricSpec,
        ModelConfig as ModelConfig,
        RunConfig as RunConfig,
        TransformSpec as TransformSpec,
        VerifierSpec as VerifierSpec,
        dump_yaml as dump_yaml,
        load_yaml as load_yaml,
        validate_yaml as validate_yaml,
    )
    from .dashboard import (
        DashboardClient as DashboardClient,
        ExperimentRun as ExperimentRun,
    )
    from .config.base import Strict as Strict
    from .data import (
        ChatMessagesRow as ChatMessagesRow,
        E2BVerifier as E2BVerifier,
        HarborTask as HarborTask,
        InProcessVerifier as InProcessVerifier,
        LLMJudgeVerifier as LLMJudgeVerifier,
        PromptExample as PromptExample,
        TargetFormat as TargetFormat,
        VerifierPayload as VerifierPayload,
        Workspace as Workspace,
        block_to_image_src as block_to_image_src,
        detect_format as detect_format,
        from_dict as from_dict,
        has_images as has_images,
        image_base64_block as image_base64_block,
        image_url_block as image_url_block,
        iter_jsonl as iter_jsonl,
        parse_rows as parse_rows,
        text_block as text_block,
        to_dict as to_dict,
    )
    from .errors import (
        ConfigError as ConfigError,
        DashboardClientError as DashboardClientError,
        DataError as DataError,
        EvsysAuthError as EvsysAuthError,
        EvsysError as EvsysError,
        WorkspaceError as WorkspaceError,
    )
    from .eval import (
        Benchmark as Benchmark,
        EvalResult as EvalResult,
    )
    from .experiment import (
        ArmResult as ArmResult,
        Experiment as Experiment,
        ExperimentResult as ExperimentResult,
        Sweep as Sweep,
        run_experiment as run_experiment,
    )
    from .experiment.loops import RecordedExperiment as RecordedExperiment, record as record
    from .history.history import History as History
    from .log import (
        configure_logger as configure_logger,
        get_logger as get_logger,
        set_level as set_level,
    )
    from .protocols import (
        Algorithm as Algorithm,
        AlgorithmTraits as AlgorithmTraits,
        Backend as Backend,
        DataStore as DataStore,
        InferenceClient as InferenceClient,
        LogStore as LogStore,
        Metric as Metric,
        RunContext as RunContext,
        RunNotes as RunNotes,
        RunResult as RunResult,
        Transform as Transform,
        VerificationResult as VerificationResult,
        Verifier as Verifier,
    )
    from .record.view.model import ExperimentView as ExperimentView
    from .registry import (
        Registry as Registry,
        get_agent as get_agent,
        get_algorithm as get_algorithm,
        get_backend as get_backend,
        get_callback as get_callback,
        get_data_store as get_data_store,
        get_deployer as get_deployer,
        get_environment as get_environment,
        get_inference as get_inference,
        get_launcher as get_launcher,
        get_log_store as get_log_store,
        get_metric as get_metric,
        get_transform as get_transform,
        get_verifier as get_verifier,
        list_agents as list_agents,
        list_algorithms as list_algorithms,
        list_backends as list_backends,
        list_callbacks as list_callbacks,
        list_data_stores as list_data_stores,
        list_deployers as list_deployers,
        list_environments as list_environments,
        list_inference as list_inference,
        list_launchers as list_launchers,
        list_log_stores as list_log_stores,
        list_metrics as list_metrics,
        list_transforms as list_transforms,
        list_verifiers as list_verifiers,
        register_agent as register_agent,
        register_algorithm as register_algorithm,
        register_backend as register_backend,
        register_callback as register_callback,
        register_data_store as register_data_store,
        register_deployer as register_deployer,
        register_environment as register_environment,
        register_inference as register_inference,
        register_launcher as register_launcher,
        register_log_store as register_log_store,
        register_metric as register_metric,
        register_transform as register_transform,
        register_verifier as register_verifier,
        register_verifier_fn as register_verifier_fn,
        schema_for as schema_for,
    )
    from .rollouts import (
        Agent as Agent,
        AgentResult as AgentResult,
        Environment as Environment,
        Message as Message,
        Policy as Policy,
        Rollout as Rollout,
        Turn as Turn,
        opening as opening,
        text_of as text_of,
    )
    from .training import (
        Callback as Callback,
        EvalRecord as EvalRecord,
        RunControl as RunControl,
        RunInfo as RunInfo,
        RunServices as RunServices,
        TrainingBatch as TrainingBatch,
    )
    from .training.frozen_model import FrozenModel as FrozenModel, SampledTurn as SampledTurn
    from .training.model import Model as Model, open_model as open_model

_SURFACE = {
    "config": """
        ExperimentConfig RunConfig DataConfig ModelConfig AlgorithmConfig BackendConfig EvalConfig TransformSpec
        DataStoreSpec LogStoreSpec MetricSpec VerifierSpec InferenceSpec load_yaml dump_yaml validate_yaml
    """,
    "config.base": "Strict",
    "data": """
        TargetFormat ChatMessagesRow HarborTask PromptExample InProcessVerifier E2BVerifier LLMJudgeVerifier
        VerifierPayload text_block image_url_block image_base64_block block_to_image_src has_images
        detect_format from_dict to_dict iter_jsonl parse_rows Workspace
    """,
    "backends": "TrainingClient SamplingClient Capabilities ModelSpec Datum AdamParams SamplingParams numpy_loss",
    "rollouts": "Agent AgentResult Environment Message Policy Rollout Turn opening text_of",
    "training": "Callback EvalRecord RunControl RunInfo RunServices TrainingBatch",
    "training.model": "open_model Model",
    "training.frozen_model": "FrozenModel SampledTurn",
    "algorithms": "BaseAlgorithm TrainingConfig SFT RL",
    "algorithms.loop_run": "LoopRun",
    "algorithms.rl": "group_advantages",
    "eval": "Benchmark EvalResult",
    "experiment": "Experiment ExperimentResult ArmResult Sweep run_experiment",
    "experiment.loops": "record RecordedExperiment",
    "record.view.model": "ExperimentView",
    "history.history": "History",
    "dashboard": "DashboardClient ExperimentRun",
    "protocols": """
        Transform DataStore Backend InferenceClient Algorithm Verifier Metric LogStore AlgorithmTraits
        RunContext RunNotes RunResult VerificationResult
    """,
    "registry": """
        Registry schema_for register_transform get_transform list_transforms register_data_store get_data_store
        list_data_stores register_backend get_backend list_backends register_inference get_inference
        list_inference register_agent get_agent list_agents register_environment get_environment
        list_environments register_algorithm get_algorithm list_algorithms register_verifier
        register_verifier_fn get_verifier list_verifiers register_metric get_metric list_metrics
        register_launcher get_launcher list_launchers register_log_store get_log_store list_log_stores
        register_callback get_callback list_callbacks register_deployer get_deployer list_deployers
    """,
    "errors": "EvsysError ConfigError DataError WorkspaceError EvsysAuthError DashboardClientError",
    "log": "configure_logger get_logger set_level",
}
"""Module -> its public names."""

_HOME = {name: module for module, names in _SURFACE.items() for name in names.split()}

__all__ = ["__version__", *_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


if "EVSYS_LOGGING_LEVEL" in os.environ:  # only then, so that importing the package stays fast
    from .log import configure_from_environment

    configure_from_environment()


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'evsys_sdk' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
