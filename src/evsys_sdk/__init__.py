"""evsys-sdk: one YAML file is one LLM-training experiment.

Everything public is importable from here and loaded on first use, grouped in the order of the data flow. What is not
listed here may move.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .config import (
        AlgorithmConfig,
        BackendConfig,
        DataConfig,
        DataStoreSpec,
        EvalConfig,
        ExperimentConfig,
        InferenceSpec,
        LogStoreSpec,
        MetricSpec,
        ModelConfig,
        RunConfig,
        TransformSpec,
        VerifierSpec,
        dump_yaml,
        load_yaml,
        validate_yaml,
    )
    from .data import (
        ChatMessagesRow,
        E2BVerifier,
        HarborTask,
        InProcessVerifier,
        LLMJudgeVerifier,
        PromptExample,
        TargetFormat,
        VerifierPayload,
        Workspace,
        block_to_image_src,
        detect_format,
        from_dict,
        has_images,
        image_base64_block,
        image_url_block,
        iter_jsonl,
        parse_rows,
        text_block,
        to_dict,
    )
    from .errors import (
        ConfigError,
        DataError,
        EvsysAuthError,
        EvsysError,
        WorkspaceError,
    )
    from .log import (
        configure_logger,
        get_logger,
        set_level,
    )
    from .protocols import (
        Algorithm,
        Backend,
        DataStore,
        InferenceClient,
        LogStore,
        Metric,
        RunContext,
        RunResult,
        Transform,
        VerificationResult,
        Verifier,
    )
    from .registry import (
        Registry,
        get_agent,
        get_algorithm,
        get_backend,
        get_callback,
        get_data_store,
        get_deployer,
        get_environment,
        get_inference,
        get_launcher,
        get_log_store,
        get_metric,
        get_transform,
        get_verifier,
        list_agents,
        list_algorithms,
        list_backends,
        list_callbacks,
        list_data_stores,
        list_deployers,
        list_environments,
        list_inference,
        list_launchers,
        list_log_stores,
        list_metrics,
        list_transforms,
        list_verifiers,
        register_agent,
        register_algorithm,
        register_backend,
        register_callback,
        register_data_store,
        register_deployer,
        register_environment,
        register_inference,
        register_launcher,
        register_log_store,
        register_metric,
        register_transform,
        register_verifier,
        schema_for,
    )

_SURFACE: dict[str, tuple[str, ...]] = {
    "config": (
        "ExperimentConfig",
        "RunConfig",
        "DataConfig",
        "ModelConfig",
        "AlgorithmConfig",
        "BackendConfig",
        "EvalConfig",
        "TransformSpec",
        "DataStoreSpec",
        "LogStoreSpec",
        "MetricSpec",
        "VerifierSpec",
        "InferenceSpec",
        "load_yaml",
        "dump_yaml",
        "validate_yaml",
    ),
    "data": (
        "TargetFormat",
        "ChatMessagesRow",
        "HarborTask",
        "PromptExample",
        "InProcessVerifier",
        "E2BVerifier",
        "LLMJudgeVerifier",
        "VerifierPayload",
        "text_block",
        "image_url_block",
        "image_base64_block",
        "block_to_image_src",
        "has_images",
        "detect_format",
        "from_dict",
        "to_dict",
        "iter_jsonl",
        "parse_rows",
        "Workspace",
    ),
    "protocols": (
        "Transform",
        "DataStore",
        "Backend",
        "InferenceClient",
        "Algorithm",
        "Verifier",
        "Metric",
        "LogStore",
        "RunContext",
        "RunResult",
        "VerificationResult",
    ),
    "registry": (
        "Registry",
        "schema_for",
        "register_transform",
        "get_transform",
        "list_transforms",
        "register_data_store",
        "get_data_store",
        "list_data_stores",
        "register_backend",
        "get_backend",
        "list_backends",
        "register_inference",
        "get_inference",
        "list_inference",
        "register_agent",
        "get_agent",
        "list_agents",
        "register_environment",
        "get_environment",
        "list_environments",
        "register_algorithm",
        "get_algorithm",
        "list_algorithms",
        "register_verifier",
        "get_verifier",
        "list_verifiers",
        "register_metric",
        "get_metric",
        "list_metrics",
        "register_launcher",
        "get_launcher",
        "list_launchers",
        "register_log_store",
        "get_log_store",
        "list_log_stores",
        "register_callback",
        "get_callback",
        "list_callbacks",
        "register_deployer",
        "get_deployer",
        "list_deployers",
    ),
    "errors": (
        "EvsysError",
        "ConfigError",
        "DataError",
        "WorkspaceError",
        "EvsysAuthError",
    ),
    "log": (
        "configure_logger",
        "get_logger",
        "set_level",
    ),
}
"""Module -> the public names it holds."""

_HOME = {name: module for module, names in _SURFACE.items() for name in names}

__all__ = ["__version__", *_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'evsys_sdk' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
