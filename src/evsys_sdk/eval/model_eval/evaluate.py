"""Asking a model every question of a dataset, with retries, and scoring what it answers.

    artifacts = evaluate_model(client, "eval.jsonl", AliasMatcher.load("aliases.json"), output_dir="outputs/eval")
    artifacts.summary.pass_at_1, artifacts.summary.retry_report.total_failures

A question that cannot be asked, however often, is a failure in the report and in no score; the next call with the same
folder asks it again, and only it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ...errors import EvalError
from ...files import write_json, write_text
from ...record.lock import exclusive
from ...training.blocking import run_blocking
from .aliases import AliasMatcher, normalise
from .asking import Asker, Progress
from .config import ModelEvalConfig
from .dataset import EvalRow, load_eval_dataset
from .extraction import extract_predicted_slug
from .journal import Journal
from .report import counted, format_summary_markdown
from .scoring import Extract, RowResult, judged
from .summary import EvalSummary, summarize


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
    asker = Asker(client, config, rows, progress)
    label = model or model_label(client)
    folder = Path(output_dir) if output_dir is not None else None
    with _locked(folder):
        journal = Journal.open(folder and folder / "predictions.jsonl", {"model": label, **config.identity}, rows)
        try:
            attempts = run_blocking(lambda: asker.ask_all(journal))
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
            retry_report=asker.report,
            model=label,
            notes=_notes(results, matcher, config),
        )
        artifacts = EvalArtifacts(summary, results, folder)
        _write(artifacts)
    return artifacts


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
    if not rows or not all(isinstance(row, EvalRow) for row in rows):
        return load_eval_dataset(rows)
    if len({row.id for row in rows}) < len(rows):
        raise EvalError("two rows have the same id, by which answers are kept. Give each row an id of its own.")
    return rows


def _notes(results: Sequence[RowResult], matcher: AliasMatcher, config: ModelEvalConfig) -> list[str]:
    """What makes the numbers mean less than they seem to."""
    answers = [attempt for result in results for attempt in result.scored]
    failed = sum(len(result.attempts) for result in results) - len(answers)
    cut = sum(attempt.truncated for attempt in answers)
    targets = {normalise(result.row.target) for result in results}
    foreign = bool(matcher.aliases.accepted) and not targets & set(matcher.aliases.accepted)
    said = {
        f"{counted(failed, 'attempt')} failed, in no score. The same command again repeats only these.": failed,
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
