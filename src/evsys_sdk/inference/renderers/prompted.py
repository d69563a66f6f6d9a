"""A renderer with a system prompt of its own, which stands before conversations that have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...data.types import Message
from ..renderer import Rendered, Renderer, Supervise


@dataclass(frozen=True, slots=True)
class PromptedRenderer:
    """Another renderer, with a system prompt."""

    inner: Renderer
    system_prompt: str

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def stop(self) -> list[str] | list[int]:
        return self.inner.stop

    def render(self, messages: Sequence[Mapping[str, Any]], supervise: Supervise = "all_assistant") -> list[Rendered]:
        return self.inner.render(self._add_prompt(messages), supervise)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self.inner.prompt(self._add_prompt(messages))

    def parse(self, tokens: Sequence[int]) -> Message:
        return self.inner.parse(tokens)

    def _add_prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        if not self.system_prompt or (messages and messages[0].get("role") == "system"):
            return list(messages)
        return [{"role": "system", "content": self.system_prompt}, *messages]
