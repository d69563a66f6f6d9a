"""`openai`, `claude` and `gemini`: hosted models of three providers with chat completions."""

from __future__ import annotations

from typing import ClassVar

from .hosted import HostedClient


class OpenAIClient(HostedClient):
    """Models of OpenAI, and of any server with its chat completions API.

        inference: { kind: openai, params: { model: gpt-4.1 } }

    The key is read from `OPENAI_API_KEY`. `base_url: http://localhost:8000/v1` selects another server, such as vLLM,
    SGLang or a gateway, which gets a key only if `api_key_env` names its variable.
    """

    name: ClassVar[str] = "openai"
    provider: ClassVar[str] = "OpenAI"
    address: ClassVar[str] = "https://api.openai.com/v1"
    key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)
    limit_field: ClassVar[str] = "max_completion_tokens"


class ClaudeClient(HostedClient):
    """Models of Anthropic, through its endpoint for chat completions.

        inference: { kind: claude, params: { model: claude-sonnet-4-6 } }

    The key is read from `ANTHROPIC_API_KEY`. Thinking of newer models counts against the token limit, so set a high
    one.
    """

    name: ClassVar[str] = "claude"
    provider: ClassVar[str] = "Anthropic"
    address: ClassVar[str] = "https://api.anthropic.com/v1"
    key_variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_API_KEY",)
    skips_blank_stops: ClassVar[bool] = True


class GeminiClient(HostedClient):
    """Models of Google, through its endpoint for chat completions.

        inference: { kind: gemini, params: { model: gemini-2.5-flash } }

    The key is read from `GEMINI_API_KEY` or `GOOGLE_API_KEY`. Thinking counts against the token limit, so set a high
    one or, where supported, `extra: { reasoning_effort: none }`.
    """

    name: ClassVar[str] = "gemini"
    provider: ClassVar[str] = "Google"
    address: ClassVar[str] = "https://generativelanguage.googleapis.com/v1beta/openai"
    key_variables: ClassVar[tuple[str, ...]] = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
