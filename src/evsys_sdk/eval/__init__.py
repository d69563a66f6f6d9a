"""Room 7: how good is it? Verifiers and metrics, benchmarks, the scoring of a run, and the model eval harness.

What stands here is the surface of benchmarks and of the model eval harness (`model_eval/`); names are loaded on first
use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..inference.retry import RetryFailure, RetryReport, call_with_retry
    from .benchmark import Benchmark
    from .model_eval.aliases import AliasMatcher
    from .model_eval.config import ModelEvalConfig
    from .model_eval.dataset import EvalRow, load_eval_dataset
    from .model_eval.evaluate import EvalArtifacts, evaluate_model
    from .model_eval.extraction import extract_predicted_slug
    from .model_eval.prompts import (
        DEFAULT_SYSTEM,
        DEFAULT_SYSTEM_NO_THINK,
        qwen3_chat_template_prompt,
        qwen_chat_prompt,
    )
    from .model_eval.report import format_summary_markdown
    from .model_eval.scoring import RowResult, score_rows
    from .model_eval.summary import EvalSummary, summarize
    from .scores import EvalResult

__all__ = [
    "DEFAULT_SYSTEM",
    "DEFAULT_SYSTEM_NO_THINK",
    "AliasMatcher",
    "Benchmark",
    "EvalArtifacts",
    "EvalResult",
    "EvalRow",
    "EvalSummary",
    "ModelEvalConfig",
    "RetryFailure",
    "RetryReport",
    "RowResult",
    "call_with_retry",
    "evaluate_model",
    "extract_predicted_slug",
    "format_summary_markdown",
    "load_eval_dataset",
    "qwen3_chat_template_prompt",
    "qwen_chat_prompt",
    "score_rows",
    "summarize",
]

_NAMES: dict[str, str] = {
    "..inference.retry": "RetryFailure RetryReport call_with_retry",
    ".benchmark": "Benchmark",
    ".model_eval.aliases": "AliasMatcher",
    ".model_eval.config": "ModelEvalConfig",
    ".model_eval.dataset": "EvalRow load_eval_dataset",
    ".model_eval.evaluate": "EvalArtifacts evaluate_model",
    ".model_eval.extraction": "extract_predicted_slug",
    ".model_eval.prompts": "DEFAULT_SYSTEM DEFAULT_SYSTEM_NO_THINK qwen3_chat_template_prompt qwen_chat_prompt",
    ".model_eval.report": "format_summary_markdown",
    ".model_eval.scoring": "RowResult score_rows",
    ".model_eval.summary": "EvalSummary summarize",
    ".scores": "EvalResult",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'evsys_sdk.eval' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value
