"""How a model is asked: everything of an evaluation that is neither the model nor the data."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ...config.base import Strict
from .prompts import DEFAULT_SYSTEM

type PromptFormat = Literal["chat", "qwen", "qwen3", "qwen3_no_think"]


class ModelEvalConfig(Strict):
    """Sampling, attempts and retries of an evaluation."""

    max_tokens: int = Field(default=1024, ge=1)
    """Longest answer; reasoning counts, and an answer that is cut off inside it names no slug."""
    temperature: float = Field(default=0.0, ge=0)
    """0 for the most probable answer; attempts only differ above 0."""
    max_attempts: int = Field(default=1, ge=1)
    """Answers drawn for each row, and so the largest k of pass@k."""
    batch_size: int = Field(default=8, ge=1)
    """Most questions asked at the same time."""
    seed: int = 0
    """Together with the row and the attempt, the seed of each answer, as far as the client takes one."""
    system: str | None = Field(default=DEFAULT_SYSTEM, min_length=1)
    """System prompt of rows with `query` or `prompt`; null for none. Rows with `messages` are asked as they are."""
    prompt_format: PromptFormat = "chat"
    """`chat` leaves the form to the client; the others write Qwen's, for a client that completes raw text."""
    retry_attempts: int = Field(default=5, ge=1)
    """How often one question is asked before it counts as failed."""
    retry_base_delay_s: float = Field(default=1.0, ge=0)
    """Longest wait before a question is asked again; it doubles each time."""
    retry_max_delay_s: float = Field(default=60.0, ge=0)
    """Longest wait there is."""

    @property
    def identity(self) -> dict[str, Any]:
        """What an answer depends on; more attempts only add to those that are there."""
        return self.model_dump(include={"max_tokens", "temperature", "seed", "system", "prompt_format"})
