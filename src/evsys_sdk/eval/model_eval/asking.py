"""Asking every question as often as wanted, several at a time, each with retries.

A question that never gets an answer is an attempt that failed, with its reason, beside its line in the `RetryReport`.
Only what every other question would run into as well, such as refused credentials, ends the evaluation.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from ...data.types import Message
from ...errors import DataError, EvalError, EvsysAuthError, MissingExtraError
from ...inference.adapter import as_chat_client
from ...inference.client import ChatClient, Completion
from ...inference.retry import RetryReport, call_with_retry_async
from ...log import get_logger
from ...redact import redact_text
from .config import ModelEvalConfig
from .dataset import EvalRow
from .extraction import TOOL_CALL_TAG
from .journal import Journal
from .prompts import END_OF_TURN, conversation, qwen3_chat_template_prompt, qwen_chat_prompt
from .scoring import Attempt

type Progress = Callable[[int, int, int], None]
"""Told after each attempt: how many are done, of how many, and how many failed."""


class Asker:
    """Makes the attempts that are missing, and says what came of each."""

    def __init__(
        self, client: Any, config: ModelEvalConfig, rows: Sequence[EvalRow], progress: Progress | None
    ) -> None:
        if config.prompt_format != "chat" and hasattr(client, "complete"):
            raise EvalError(
                f"prompt_format is '{config.prompt_format}', but {type(client).__name__} takes messages and applies "
                "its model's own format. Use prompt_format 'chat'."
            )
        self.client: ChatClient = as_chat_client(client)
        self.config, self.rows, self.progress = config, rows, progress
        self.report = RetryReport()
        self._prompts = {row.id: self._prompt(row) for row in rows}

    async def ask_all(self, journal: Journal) -> dict[str, list[Attempt]]:
        """Every attempt at every row by the row's id, those of the journal as they were."""
        wanted = [(row, number) for row in self.rows for number in range(1, self.config.max_attempts + 1)]
        found = {(row.id, n): journal.answers[row.id, n] for row, n in wanted if (row.id, n) in journal.answers}
        missing = iter([(row, number) for row, number in wanted if (row.id, number) not in found])

        async def work() -> None:
            for row, number in missing:
                attempt = await self._ask(row, number)
                journal.append(row, attempt)
                found[row.id, number] = attempt
                self._tell(len(found), len(wanted))

        self._tell(len(found), len(wanted))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.config.batch_size, len(wanted))):
                    group.create_task(work())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return {row.id: [found[row.id, n] for n in range(1, self.config.max_attempts + 1)] for row in self.rows}

    async def _ask(self, row: EvalRow, number: int) -> Attempt:
        config = self.config
        what = f"row '{row.id}', attempt {number}"
        messages, stop = self._prompts[row.id]

        async def complete() -> Completion:
            [completion] = await self.client.complete(
                messages,
                max_tokens=config.max_tokens,
                temperature=config.temperature,
                stop=stop,
                seed=_seed(config.seed, row.id, number),
            )
            return completion

        try:
            completion = await call_with_retry_async(
                complete,
                attempts=config.retry_attempts,
                base_delay=config.retry_base_delay_s,
                max_delay=config.retry_max_delay_s,
                what=what,
                report=self.report,
            )
        except (EvsysAuthError, MissingExtraError):  # no other question would fare better
            raise
        except Exception as error:
            reason = _writable(redact_text(f"{type(error).__name__}: {error}"))
            get_logger(__name__).info("%s failed: %s", what, reason)
            return Attempt(number, None, error=reason)
        return Attempt(
            number,
            _text(completion),
            truncated=completion.stop_reason == "length",
            tokens=completion.usage.output_tokens,
            cost_usd=completion.cost_usd,
            seconds=completion.seconds,
        )

    def _prompt(self, row: EvalRow) -> tuple[list[Message], list[str] | None]:
        """What the client is given, and where it should stop beside its own marks."""
        question, system = row.question, self.config.system
        if self.config.prompt_format == "chat":
            return conversation(question, system), None
        try:
            if self.config.prompt_format == "qwen":
                text = qwen_chat_prompt(question, system=system)
            else:
                thinking = self.config.prompt_format == "qwen3"
                text = qwen3_chat_template_prompt(question, system=system, enable_thinking=thinking)
        except DataError as error:
            raise DataError(f"row '{row.id}': {error}") from None
        return [{"role": "user", "content": text}], [END_OF_TURN]

    def _tell(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(done, total, self.report.total_failures)


def _seed(seed: int, row: str, number: int) -> int:
    digest = hashlib.blake2b(repr((seed, row, number)).encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1  # some servers want a signed one


def _text(completion: Completion) -> str:
    """The answer as text; tool calls that stand beside it are written into it, where they are looked for."""
    calls: list[Any] = completion.message.get("tool_calls") or []
    written = [f"<{TOOL_CALL_TAG}>{json.dumps(call.get('function', call))}</{TOOL_CALL_TAG}>" for call in calls]
    text = "\n".join([completion.text, *written]) if written else completion.text
    return _writable(text)


def _writable(text: str) -> str:
    """The text without halves of characters, which cannot be written down."""
    return text.encode("utf-8", "replace").decode()
