"""Asking a model every question of a dataset, with retries, and scoring what it answers.

    artifacts = evaluate_model(client, "eval.jsonl", AliasMatcher.load("aliases.json"), output_dir="outputs/eval")
    artifacts.summary.pass_at_1, artifacts.summary.retry_report.total_failures

A question that cannot be asked, however often, is a failure in the report and in no score; the next call with the same
folder asks it again, and only it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ...data.file_lock import exclusive
from ...data.types import Message
from ...errors import DataError, EvalError, EvsysAuthError, MissingExtraError
from ...files import write_json, write_text
from ...inference.adapter import as_chat_client
from ...inference.client import ChatClient, Completion
from ...inference.redaction import hide_environment_keys
from ...inference.retry import RetryReport, call_with_retry_async
from ...log import get_logger
from ...training.blocking import run_blocking
from .aliases import AliasMatcher, normalise
from .config import ModelEvalConfig
from .dataset import EvalRow, load_eval_dataset
from .extraction import TOOL_CALL_TAG, extract_predicted_slug
from .journal import Journal
from .prompts import END_OF_TURN, conversation, qwen3_chat_template_prompt, qwen_chat_prompt
from .report import counted, format_summary_markdown
from .scoring import Attempt, Extract, RowResult, judged
from .summary import EvalSummary, summarize

type Progress = Callable[[int, int, int], None]
"""Told after each attempt: how many are done, of how many, and how many failed."""


@dataclass(frozen=True, slots=True)
class EvalArtifacts:
    """What an evaluation leaves: its numbers, every attempt, and where they are written."""

    summary: EvalSummary
    results: Sequence[RowResult]
    output_dir: Path | None = None

    @property
    def predictions_path(self) -> Path | None:
        """One line for each attempt, after a first line that says what was asked and how."""
        return self._file("predictions.jsonl")

    @property
    def summary_path(self) -> Path | None:
        """The numbers as JSON."""
        return self._file("summary.json")

    @property
    def markdown_path(self) -> Path | None:
        """The numbers for people."""
        return self._file("summary.md")

    def _file(self, name: str) -> Path | None:
        return self.output_dir / name if self.output_dir else None


def evaluate_model(
    client: Any,
    dataset: str | Path | Sequence[EvalRow] | Iterable[Mapping[str, Any]],
    matcher: AliasMatcher | None = None,
    *,
    config: ModelEvalConfig | None = None,
    output_dir: str | Path | None = None,
    model: str | None = None,
    extract: Extract = extract_predicted_slug,
    progress: Progress | None = None,
) -> EvalArtifacts:
    """Score an inference client on a dataset; works inside and outside of an event loop.

    `client` has `complete`, or at least `generate(*, prompt, max_tokens, temperature, stop)`. With `output_dir`,
    answers that are there already are not asked for again. `model` says which weights these are, where the client's
    own name and params do not: answers of different ones are never mixed.
    """
    config, matcher = config or ModelEvalConfig(), matcher or AliasMatcher()
    rows = _rows(dataset)
    evaluation = _Evaluation(client, config, rows, progress)
    label = model or model_label(client)
    folder = Path(output_dir) if output_dir is not None else None
    with _locked(folder):
        journal = Journal.open(folder and folder / "predictions.jsonl", {"model": label, **config.identity}, rows)
        try:
            attempts = run_blocking(lambda: evaluation.ask_all(journal))
            results = [
                RowResult(row, tuple(judged(attempt, row, matcher, extract) for attempt in attempts[row.id]))
                for row in rows
            ]
            journal.finish(results)
        finally:
            journal.close()
        summary = summarize(
            results,
            max_attempts=config.max_attempts,
            secondary=matcher.secondary is not None,
            retry_report=evaluation.report,
            model=label,
            notes=_notes(results, matcher, config),
        )
        artifacts = EvalArtifacts(summary, results, folder)
        _write(artifacts)
    return artifacts


class _Evaluation:
    """The asking: which attempts are missing, and what came of each."""

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
            reason = hide_environment_keys(f"{type(error).__name__}: {error}")
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


def model_label(client: Any) -> str:
    """Which model a client answers with: its kind, its model's name, and a digest of its params."""
    name, model = getattr(client, "name", type(client).__name__), getattr(client, "model", None)
    label = f"{name}:{model}" if model else str(name)
    config: Any = getattr(client, "config", None)
    if not isinstance(config, BaseModel):
        return label
    return f"{label}#{hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:8]}"  # may hold what is private


@contextmanager
def _locked(folder: Path | None) -> Generator[None]:
    """Keep a second process out of a folder until this one is done."""
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EvalError(f"{folder}: it cannot hold the results: {error.strerror}. Choose another folder.") from error
    with exclusive(folder / ".lock", str(folder)):
        yield


def _rows(dataset: Any) -> list[EvalRow]:
    if isinstance(dataset, str | Path):
        return load_eval_dataset(dataset)
    rows: list[Any] = list(dataset)
    return rows if rows and all(isinstance(row, EvalRow) for row in rows) else load_eval_dataset(rows)


def _seed(seed: int, row: str, number: int) -> int:
    digest = hashlib.blake2b(repr((seed, row, number)).encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1  # some servers want a signed one


def _text(completion: Completion) -> str:
    """The answer as text; tool calls that stand beside it are written into it, where they are looked for."""
    calls: list[Any] = completion.message.get("tool_calls") or []
    written = [f"<{TOOL_CALL_TAG}>{json.dumps(call.get('function', call))}</{TOOL_CALL_TAG}>" for call in calls]
    text = "\n".join([completion.text, *written]) if written else completion.text
    return text.encode("utf-8", "replace").decode()  # half a character cannot be written down


def _notes(results: Sequence[RowResult], matcher: AliasMatcher, config: ModelEvalConfig) -> list[str]:
    """What makes the numbers mean less than they seem to."""
    answers = [attempt for result in results for attempt in result.scored]
    failed = sum(len(result.attempts) for result in results) - len(answers)
    cut = sum(attempt.truncated for attempt in answers)
    targets = {normalise(result.row.target) for result in results}
    foreign = bool(matcher.aliases.accepted) and not targets & set(matcher.aliases.accepted)
    said = {
        f"{counted(failed, 'attempt')} failed, in no score. Run again with the same folder to repeat only that.": failed,
        f"Cut off at max_tokens ({config.max_tokens}): {cut} of {counted(len(answers), 'answer')}.": cut,
        "Temperature is 0, so attempts hardly differ and pass@k says little more than pass@1.": (
            config.max_attempts > 1 and config.temperature == 0
        ),
        "No target has an alias: the aliases may belong to another dataset.": foreign,
    }
    return [note for note, is_so in said.items() if is_so]


def _write(artifacts: EvalArtifacts) -> None:
    if artifacts.summary_path is not None and artifacts.markdown_path is not None:
        write_json(artifacts.summary_path, artifacts.summary.to_dict())
        write_text(artifacts.markdown_path, format_summary_markdown(artifacts.summary))
