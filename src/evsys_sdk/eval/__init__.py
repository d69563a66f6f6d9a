"""Evaluation: rows become tasks with a verifier, and one engine samples answers and scores them.

row_tasks, run_eval, model_eval      rows -> tasks, for a run's evaluation and for `evsys eval model`
benchmark                            the engine: tasks x model -> predictions -> scores; `predictions` is its journal
scored_model                         the model: a sampler in training, an inference client or a policy
verifier, metric, scores             answers -> rewards -> scores with standard errors

Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from ..inference.retry import RetryFailure, RetryReport, call_with_retry
    from .benchmark import Benchmark
    from .model_eval.evaluate import EvalArtifacts, ModelEvalConfig, evaluate_model, load_eval_dataset, score_rows
    from .model_eval.prompts import (
        DEFAULT_SYSTEM,
        DEFAULT_SYSTEM_NO_THINK,
        qwen3_chat_template_prompt,
        qwen_chat_prompt,
    )
    from .model_eval.slugs import AliasMatcher, extract_predicted_slug
    from .model_eval.summary import EvalRow, EvalSummary, RowResult, format_summary_markdown, summarize
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

__getattr__ = lazy_names(
    __name__,
    {
        ".inference.retry": "RetryFailure RetryReport call_with_retry",
        "benchmark": "Benchmark",
        "model_eval.evaluate": "EvalArtifacts ModelEvalConfig evaluate_model load_eval_dataset score_rows",
        "model_eval.summary": "EvalRow EvalSummary RowResult format_summary_markdown summarize",
        "model_eval.prompts": "DEFAULT_SYSTEM DEFAULT_SYSTEM_NO_THINK qwen3_chat_template_prompt qwen_chat_prompt",
        "scores": "EvalResult",
        "model_eval.slugs": "AliasMatcher extract_predicted_slug",
    },
)
