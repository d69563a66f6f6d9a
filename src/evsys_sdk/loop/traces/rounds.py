"""Split new traces by time into training rows and held-out tasks.

    made = seal_round("support", share=0.2)
    made.dataset, made.benchmark

Each round takes the traces that no earlier round took. The latest ones are held out; older traces with the same
conversations or questions are left out. Held-out traces are never trained on. A dataset holds the training rows of all
rounds so far, without answers that fail now; a benchmark holds the tasks of its round only, so that it is newer than
the training data.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...data.jsonl import write_jsonl
from ...data.workspace.workspace import Workspace
from ...errors import DataError
from ...record.jsonl_file import JsonlFile, read_records
from ...record.layout import lock_beside
from ...record.lock import exclusive
from ..questions import follow_settled, question_of, sort_by_kind
from .feedback import CORRECTION, as_taught, list_corrections
from .store import TraceStore

_ROUNDS = "rounds.jsonl"
_OUTDATED = "an answer that is no longer found good"
_FEWEST = 2
"""Fewest held-out traces."""


@dataclass(frozen=True, slots=True)
class Round:
    """The result of sealing a round."""

    number: int
    dataset: str
    """Id of the dataset with the training rows so far."""
    benchmark: str
    """Id of the benchmark with the held-out tasks."""
    cut: float
    """Traces at or after this time were held out."""
    taken: int
    """Number of new traces."""
    rows: int
    tasks: int
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    """Reason -> number of traces that are in neither."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_rounds(name: str) -> list[dict[str, Any]]:
    """The rounds of a store with the ids of their traces, oldest first."""
    return list(read_records(rounds_file(name)))


def rounds_file(name: str) -> Path:
    """The file of a store's rounds; it may not exist."""
    return TraceStore(name).folder / _ROUNDS


def seal_round(
    name: str,
    *,
    share: float = 0.2,
    min_reward: float | None = None,
    verifier: str = "exact_match",
    without: Collection[int] = (),
    aside: Collection[str] = (),
) -> Round:
    """Split the new traces into training rows and held-out tasks; the rows exclude those of the rounds in `without`.

    New traces whose ids are in `aside` are in neither.
    """
    store = TraceStore(name)
    with exclusive(lock_beside(store.folder / _ROUNDS), f"the rounds of '{name}'"):
        before = read_rounds(name)
        used, aside = find_used(before), set(aside)
        untaken = [trace for trace in store.read() if trace["id"] not in used]
        fresh = sorted((trace for trace in untaken if trace["id"] not in aside), key=_when)
        cut = _cut(fresh, share, name)
        # By time, so that traces with the same time are on the same side.
        held_out = [trace for trace in fresh if _when(trace)[0] >= cut]
        trainable, left_out = _separate([trace for trace in fresh if _when(trace)[0] < cut], held_out)
        tasks, poor = _make_tasks(held_out, min_reward, verifier)
        trained = find_trained(before, without)
        earlier = [trace for trace in store.read() if trace["id"] in trained] if trained else []
        outdated = _find_outdated(fresh, earlier)
        current = [trace for trace in earlier if trace["id"] not in outdated]
        rows = list(_make_rows(sorted([*current, *trainable], key=_when), min_reward))
        left_out |= poor | {"to be trained on without a good answer": len(current) + len(trainable) - len(rows)}
        left_out |= {_OUTDATED: len(outdated), "people disagree about it": len(untaken) - len(fresh)}
        dataset, benchmark = _add(store.folder / f"round-{len(before) + 1}", name, rows, tasks)
        counts = {reason: count for reason, count in left_out.items() if count}
        sealed = Round(len(before) + 1, dataset, benchmark, cut, len(untaken), len(rows), len(tasks), counts)
        # Written last, so that a killed process leaves no round, only files that the next attempt replaces.
        with JsonlFile(store.folder / _ROUNDS) as file:
            ids = {"trained": [trace["id"] for trace in trainable], "held_out": [trace["id"] for trace in held_out]}
            ids["aside"] = sorted({trace["id"] for trace in untaken} - {*ids["trained"], *ids["held_out"]})
            file.append({**sealed.to_dict(), "time": time.time(), **ids, "outdated": sorted(outdated)})
    return sealed


def find_used(rounds: Sequence[dict[str, Any]]) -> set[str]:
    """The ids of all traces in any round."""
    return {id for record in rounds for key in ("trained", "held_out", "aside") for id in record.get(key, ())}


def find_trained(rounds: Sequence[dict[str, Any]], without: Collection[int] = ()) -> set[str]:
    """The ids of the training traces of all rounds but those in `without`, except outdated ones."""
    counted = [record for record in rounds if record["number"] not in without]
    outdated = {id for record in counted for id in record.get("outdated", ())}
    return {id for record in counted for id in record["trained"]} - outdated


def _find_outdated(fresh: Sequence[dict[str, Any]], earlier: Sequence[dict[str, Any]]) -> set[str]:
    """The ids of earlier good answers that fail now and contradict the new ones."""
    new, earlier_questions = sort_by_kind([*fresh, *list_corrections(fresh)], [as_taught(trace) for trace in earlier])
    standings = (
        standing for standing in follow_settled(new, earlier_questions) if standing.is_over and standing.others
    )
    over = {(standing.kind, standing.answer) for standing in standings}
    pairs = zip(earlier, earlier_questions, strict=True)
    return {trace["id"] for trace, question in pairs if (question.kind, question.answer) in over}


def _when(trace: dict[str, Any]) -> tuple[float, str]:
    """The sort key of a trace by time; traces without a time count as the oldest."""
    return (trace["time"] if trace["time"] is not None else 0.0, trace["id"])


def _cut(fresh: Sequence[dict[str, Any]], share: float, name: str) -> float:
    if not 0 < share < 1:
        raise DataError(f"the share to hold out must lie between 0 and 1 (got {share}).")
    count = round(len(fresh) * share)
    if count < _FEWEST or len(fresh) - count < 1:
        raise DataError(
            f"'{name}' has {len(fresh)} new traces; {share:.0%} of them are too few to hold out. Import more first."
        )
    cut = _when(fresh[-count])[0]
    if cut <= _when(fresh[0])[0]:
        raise DataError(
            f"the traces of '{name}' cannot be split by time: at least {1 - share:.0%} of them have the same time, or "
            "none. Import traces with times."
        )
    return cut


def _separate(
    older: Sequence[dict[str, Any]], held_out: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The older traces without held-out conversations and questions, and the number of removed ones by reason."""
    conversations = {trace["conversation"] for trace in held_out if trace["conversation"]}
    questions = {question for trace in held_out if (question := question_of(trace))}
    apart_by_conversation = [trace for trace in older if trace["conversation"] not in conversations]
    apart = [trace for trace in apart_by_conversation if question_of(trace) not in questions]
    return apart, {
        "its conversation continues in the hold-out": len(older) - len(apart_by_conversation),
        "its question is in the hold-out": len(apart_by_conversation) - len(apart),
    }


def _is_good(trace: dict[str, Any], min_reward: float | None) -> bool:
    if trace["messages"][-1]["role"] != "assistant" or not any(
        message["role"] == "user" for message in trace["messages"]
    ):
        return False
    if min_reward is None:
        return True
    return trace["reward"] is not None and trace["reward"] >= min_reward


def _make_rows(traces: Sequence[dict[str, Any]], min_reward: float | None) -> Iterator[dict[str, Any]]:
    for trace in map(as_taught, traces):
        if _is_good(trace, min_reward):
            about = {"trace": trace["id"], "time": trace["time"], "reward": trace["reward"], "source": trace["source"]}
            about |= {"corrected": True} if CORRECTION in trace else {}
            yield {"messages": trace["messages"], "metadata": about}


def _make_tasks(
    held_out: Sequence[dict[str, Any]], min_reward: float | None, verifier: str
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Tasks from held-out traces with one question and a good answer, and the number of others by reason."""
    tasks: dict[str, dict[str, Any]] = {}
    several = poor = 0
    for trace in map(as_taught, held_out):
        questions = [message for message in trace["messages"] if message["role"] == "user"]
        if not _is_good(trace, min_reward):
            poor += 1
        elif len(questions) != 1:
            several += 1
        else:
            expected = trace["messages"][-1]["content"]
            # By question, so that a repeated question is one task with its last good answer.
            tasks[question_of(trace)] = {
                "task_id": trace["id"],
                "instruction": questions[0]["content"],
                "verifier": {"kind": "in_process", "fn_name": verifier, "expected": expected},
                "metadata": {"trace": trace["id"], "time": trace["time"]},
            }
    counts = {"held out without a good answer": poor, "held out with several questions": several}
    return list(tasks.values()), counts


def _add(folder: Path, name: str, rows: list[dict[str, Any]], tasks: list[dict[str, Any]]) -> tuple[str, str]:
    for label, entries in (("row to train on", rows), ("task to be judged by", tasks)):
        if not entries:
            raise DataError(f"this round would have no {label}. Import more traces, or lower --min-reward.")
    write_jsonl(folder / "train.jsonl", rows)
    write_jsonl(folder / "tasks.jsonl", tasks)
    workspace = Workspace()
    dataset = workspace.add("dataset", folder / "train.jsonl", name)
    benchmark = workspace.add("benchmark", folder / "tasks.jsonl", f"{name}-holdout")
    return dataset.rows.id, benchmark.rows.id
