"""Score a model on requests whose answer is a slug or one of its verified aliases.

    artifacts = evaluate_model(client, "eval.jsonl", AliasMatcher.load("aliases.json"), output_dir="outputs/eval")
    artifacts.summary.pass_at_1, artifacts.summary.retry_report.total_failures

Rows become tasks of one benchmark. A question without an answer after all retries is reported as a failure and excluded
from scores; the next call with the same folder repeats only failed questions. A corrected target or alias re-scores the
stored answers.

A row of the dataset: `{"query": "Email Ada the minutes", "tool_slug": "GMAIL_SEND_EMAIL", "toolkit": "gmail"}`. The
question is `query` or `prompt` (text) or `messages` (a conversation, sent unchanged); the slug is `tool_slug`, `answer`
or `target`. `id` or `task_id` identifies a row, else its line number. Other keys are ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import batched
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from ...config.base import Strict
from ...data.jsonl import iter_numbered_rows
from ...data.shapes import check_messages
from ...data.types import HarborTask, InProcessVerifier, Message
from ...errors import DataError, EvalError, show
from ...files import write_json, write_text
from ...inference.adapter import as_chat_client
from ...inference.client import Completion
from ...inference.retry import RetryReport, call_with_retry_async
from ...protocols import VerificationResult
from ...record.lock import exclusive
from ...record.project_files.known_folders import write_scoring
from ...rollouts.engine import EngineLimits
from ...rollouts.rollout import Rollout
from ..benchmark import Benchmark, ScoreSettings
from ..predictions import Prediction
from ..row_tasks import task_of
from ..scored_model import ClientModel, RetryRequest, Sampling
from ..scores import EvalResult
from .prompts import DEFAULT_SYSTEM, END_OF_TURN, conversation, qwen3_chat_template_prompt, qwen_chat_prompt
from .slugs import PASSES, TOOL_CALL_TAG, AliasMatcher, extract_predicted_slug, normalise
from .summary import EvalRow, EvalSummary, RowResult, format_summary_markdown, pluralise, summarize

type Extract = Callable[[str], str | None]
"""Finds the predicted slug in an answer."""
type Progress = Callable[[int, int, int], None]
"""Called after each attempt with the number done, the total, and the number failed."""

_QUESTIONS, _TARGETS, _IDS = ("prompt", "query", "messages"), ("tool_slug", "answer", "target"), ("id", "task_id")
_LONGEST_QUESTION_S = 3600.0
"""Time limit of one question with all its retries; a client has its own shorter limits."""


class ModelEvalConfig(Strict):
    """How to sample answers, apart from the model and the data."""

    max_tokens: int = Field(default=1024, ge=1)
    """Maximum answer length, reasoning included; an answer cut off in its reasoning names no slug."""
    temperature: float = Field(default=0.0, ge=0)
    """0 takes the most probable token; attempts differ only above 0."""
    max_attempts: int = Field(default=1, ge=1)
    """Answers sampled per row, and the largest k of pass@k."""
    batch_size: int = Field(default=8, ge=1)
    """Concurrent questions."""
    seed: int = 0
    """Base seed; row and attempt are mixed in. Clients without seeds ignore it."""
    system: str | None = Field(default=DEFAULT_SYSTEM, min_length=1)
    """System prompt of rows with `query` or `prompt`; null for none. Rows with `messages` are sent unchanged."""
    prompt_format: Literal["chat", "qwen", "qwen3", "qwen3_no_think"] = "chat"
    """`chat` leaves formatting to the client; the others write Qwen's format, for a client that completes raw text."""
    metrics: list[str] = []
    """Registered metrics to report next to pass@k with aliases."""
    retry_attempts: int = Field(default=5, ge=1)
    """Attempts at one question before it counts as failed."""
    retry_base_delay_s: float = Field(default=1.0, ge=0)
    """Maximum wait before the first retry; it doubles with each retry."""
    retry_max_delay_s: float = Field(default=60.0, ge=0)
    """Maximum wait before any retry."""


@dataclass(frozen=True, slots=True)
class EvalArtifacts:
    """Scores, attempts and output folder of an evaluation."""

    summary: EvalSummary
    results: Sequence[RowResult]
    output_dir: Path | None = None
    """Folder of `predictions.jsonl`, `summary.json` and `summary.md`."""


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
    stored answers are reused. `model` identifies the weights if the client's name and params do not; answers of
    different models are never mixed.
    """
    config, matcher, report = config or ModelEvalConfig(), matcher or AliasMatcher(), RetryReport()
    if config.prompt_format != "chat" and hasattr(client, "complete"):
        raise EvalError(
            f"prompt_format '{config.prompt_format}': {type(client).__name__} takes messages and applies "
            "its model's format. Use prompt_format 'chat'."
        )
    rows = {row.id: row for row in _read_rows(dataset)}
    name = Path(dataset).stem if isinstance(dataset, str | Path) else "rows"
    benchmark = Benchmark.of([_task_of(row, config) for row in rows.values()], name=name)
    settings = _settings(config, lambda task_id, answer: _judge(answer, rows[task_id], matcher, extract))
    for _, problem, remedy in settings.metric_problems(benchmark.tasks):
        raise EvalError(
            f"metrics: {problem.replace('samples', 'max_attempts')}. {remedy.replace('samples', 'max_attempts')}"
        )
    subject = ClientModel(as_chat_client(client), model or label_model(client), _retry_requests(config, report))
    folder = Path(output_dir) if output_dir is not None else None
    with _lock(folder):
        result = benchmark.score(
            subject,
            settings,
            journal=folder and folder / "predictions.jsonl",
            progress=progress and (lambda done, total: progress(done, total, report.total_failures)),
        )
        # Predictions are in row order, with all attempts of a row together.
        results = list(map(RowResult, rows.values(), batched(result.predictions, config.max_attempts)))
        summary = summarize(
            results,
            max_attempts=config.max_attempts,
            secondary=matcher.secondary is not None,
            retry_report=report,
            model=subject.ref,
            notes=_notes(results, result, matcher, config),
        )
        artifacts = EvalArtifacts(replace(summary, metrics=result.metrics), results, folder)
        _write(artifacts, result)
    return artifacts


def score_rows(
    rows: Sequence[EvalRow],
    completions: Sequence[Sequence[str | None]],
    matcher: AliasMatcher,
    *,
    extract: Extract = extract_predicted_slug,
) -> list[RowResult]:
    """Score existing answers: the attempts of each row as texts, None where the request failed."""
    if len(rows) != len(completions):
        raise EvalError(f"{len(rows)} rows, but answers for {len(completions)}. Pass one list of answers per row.")
    if any(isinstance(texts, str) for texts in completions):
        raise EvalError(
            "completions must have a list of answers per row, even for a single answer. Write [[text], ...]."
        )

    def score(row: EvalRow, at: int, text: str | None) -> Prediction:
        if text is None:
            return Prediction(row.id, at, "infra", None)
        verdict = _judge(text, row, matcher, extract)
        return Prediction(row.id, at, "ok", verdict.reward, text, info=verdict.info)

    return [
        RowResult(row, tuple(score(row, at, text) for at, text in enumerate(texts)))
        for row, texts in zip(rows, completions, strict=True)
    ]


def _judge(answer: str, row: EvalRow, matcher: AliasMatcher, extract: Extract) -> VerificationResult:
    """The predicted slug of an answer and how it matches the target."""
    predicted = extract(answer)
    match = matcher.match(predicted, row.target)
    info = {"predicted": predicted, "match": match, "target": row.target, "toolkit": row.toolkit}
    return VerificationResult(float(match in PASSES), info)


def _settings(config: ModelEvalConfig, judge: Callable[[str, str], VerificationResult]) -> ScoreSettings:
    async def verify(task: HarborTask, rollout: Rollout, environment: Any) -> VerificationResult:
        return judge(task.task_id, _answer(rollout.completion, rollout.turns[-1].message))

    def rejudge(task: HarborTask, stored: Prediction) -> Prediction:
        verdict = judge(task.task_id, _answer(stored.text, stored.messages[-1] if stored.messages else {}))
        return replace(stored, reward=verdict.reward, info=verdict.info)

    stop = None if config.prompt_format == "chat" else (END_OF_TURN,)
    return ScoreSettings(
        samples=config.max_attempts,
        sampling=Sampling(config.max_tokens, config.temperature, config.seed, stop),
        # One attempt in the engine: `_retry_requests` retries, with backoff and a report.
        limits=EngineLimits(concurrency=config.batch_size, timeout_s=_LONGEST_QUESTION_S, attempts=1),
        metrics=config.metrics,
        verify=verify,
        rejudge=rejudge,
    )


def _retry_requests(config: ModelEvalConfig, report: RetryReport) -> RetryRequest:
    async def retry(what: str, complete: Callable[[], Awaitable[list[Completion]]]) -> list[Completion]:
        return await call_with_retry_async(
            complete,
            attempts=config.retry_attempts,
            base_delay=config.retry_base_delay_s,
            max_delay=config.retry_max_delay_s,
            what=what,
            report=report,
        )

    return retry


def _answer(text: str, message: Message) -> str:
    """The answer as text, with native tool calls appended as tags, where `extract_predicted_slug` finds them."""
    calls: list[Any] = message.get("tool_calls") or []
    tagged = [f"<{TOOL_CALL_TAG}>{json.dumps(call.get('function', call))}</{TOOL_CALL_TAG}>" for call in calls]
    return "\n".join([text, *tagged])


def _task_of(row: EvalRow, config: ModelEvalConfig) -> HarborTask:
    # Not called, because `_judge` knows the aliases; metrics that compare texts read the target from it.
    verifier = InProcessVerifier("exact_match", expected=row.target)
    metadata = {} if row.toolkit is None else {"toolkit": row.toolkit}
    if config.prompt_format == "chat":
        return task_of(row.id, conversation(row.question, config.system), verifier, metadata)
    try:
        if config.prompt_format == "qwen":
            text = qwen_chat_prompt(row.question, system=config.system)
        else:
            thinking = config.prompt_format == "qwen3"
            text = qwen3_chat_template_prompt(row.question, system=config.system, enable_thinking=thinking)
    except DataError as error:
        raise DataError(f"row '{row.id}': {error}") from None
    return HarborTask(row.id, text, verifier, metadata)


def label_model(client: Any) -> str:
    """Identify a client's model: kind, model name, and a digest of its params."""
    name, model = getattr(client, "name", type(client).__name__), getattr(client, "model", None)
    label = f"{name}:{model}" if model else str(name)
    config: Any = getattr(client, "config", None)
    if not isinstance(config, BaseModel):
        return label
    return (
        f"{label}#{hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:8]}"  # hashed: params may be private
    )


@contextmanager
def _lock(folder: Path | None) -> Generator[None]:
    """Lock a folder against other processes."""
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EvalError(f"{folder}: cannot be created: {error.strerror}. Choose another folder.") from error
    with exclusive(folder / ".lock", str(folder)):
        yield


def _notes(
    results: Sequence[RowResult], result: EvalResult, matcher: AliasMatcher, config: ModelEvalConfig
) -> list[str]:
    """Caveats of the scores."""
    answers = [attempt for row in results for attempt in row.scored]
    failed, cut = result.n_failed, sum(attempt.status == "truncated" for attempt in answers)
    targets = {normalise(row.row.target) for row in results}
    notes = {
        f"Excluded: {pluralise(failed, 'failed attempt')}. Run the same command to repeat only these.": failed,
        f"Cut off at max_tokens ({config.max_tokens}): {cut} of {pluralise(len(answers), 'answer')}.": cut,
        "Temperature is 0, so attempts hardly differ and pass@k is close to pass@1.": (
            config.max_attempts > 1 and config.temperature == 0
        ),
        "No target has an alias. Check that the aliases belong to this dataset.": (
            bool(matcher.aliases) and not targets & set(matcher.aliases)
        ),
        **{f"{error} The metric is omitted.": True for error in result.metric_errors.values()},
    }
    return [note for note, applies in notes.items() if applies] + ([result.note.capitalize()] if result.note else [])


def _write(artifacts: EvalArtifacts, result: EvalResult) -> None:
    if artifacts.output_dir is not None:
        write_json(artifacts.output_dir / "summary.json", artifacts.summary.to_dict())
        write_text(artifacts.output_dir / "summary.md", format_summary_markdown(artifacts.summary))
        write_scoring(artifacts.output_dir, "eval model", {**result.to_dict(), "summary": artifacts.summary.to_dict()})


def _read_rows(dataset: Any) -> list[EvalRow]:
    if isinstance(dataset, str | Path):
        return load_eval_dataset(dataset)
    rows: list[Any] = list(dataset)
    if not rows or not all(isinstance(row, EvalRow) for row in rows):
        return load_eval_dataset(rows)
    if len({row.id for row in rows}) < len(rows):
        raise EvalError("two rows have the same id. Give each row a unique id.")
    return rows


def load_eval_dataset(source: str | Path | Iterable[Mapping[str, Any]]) -> list[EvalRow]:
    """The rows of a JSONL file or of raw rows; raises DataError for a row that cannot be scored."""
    if isinstance(source, str | Path):
        name, raw = str(source), iter_numbered_rows(source)
    else:
        name, raw = "rows", enumerate(source, 1)
    rows: dict[str, EvalRow] = {}
    lines: dict[str, int] = {}
    for number, fields in raw:
        try:
            row = _read_row(fields, number)
        except DataError as error:
            raise DataError(f"{name}:{number}: {error}") from None
        if row.id in rows:
            raise DataError(f"{name}:{number}: the id {show(row.id)} repeats line {lines[row.id]}. Rename one.")
        rows[row.id], lines[row.id] = row, number
    if not rows:
        raise DataError(f"{name}: no rows to score. Check the file.")
    return list(rows.values())


def _read_row(fields: Mapping[str, Any], number: int) -> EvalRow:
    toolkit = fields.get("toolkit")
    if toolkit is not None and (not isinstance(toolkit, str) or not toolkit.strip()):
        raise DataError(f"'toolkit' must be non-empty text, not {show(toolkit)}. Omit it if there is none.")
    id = next((fields[name] for name in _IDS if fields.get(name) is not None), f"row-{number}")
    if isinstance(id, bool) or not isinstance(id, str | int) or id == "":
        raise DataError(f"the id must be text or a whole number, not {show(id)}.")
    name, target = _pick(fields, _TARGETS, "target")
    if not isinstance(target, str) or not target.strip():
        raise DataError(f"'{name}' must be a slug, not {show(target)}.")
    return EvalRow(str(id), _read_question(*_pick(fields, _QUESTIONS, "question")), target.strip(), toolkit)


def _read_question(name: str, value: Any) -> str | list[Message]:
    if name != "messages" and not isinstance(value, list):
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"'{name}' must be non-empty text, not {show(value)}.")
        return value
    messages = check_messages(value)
    if messages[-1]["role"] == "assistant":
        raise DataError("the messages end with an assistant turn, which reveals the answer. Remove that turn.")
    return messages


def _pick(fields: Mapping[str, Any], names: Sequence[str], what: str) -> tuple[str, Any]:
    """The first of `names` that the row has, and its value; different values under two names are refused."""
    present = [name for name in names if fields.get(name) is not None]
    if not present:
        keys = ", ".join(map(str, fields)) or "none"
        raise DataError(f"the row has no {what}: add one of {', '.join(names)}. Its keys: {keys}.")
    for other in present[1:]:
        if fields[other] != fields[present[0]]:
            raise DataError(f"'{present[0]}' and '{other}' differ, and both are a {what}. Remove one of them.")
    return present[0], fields[present[0]]
