"""Traces -> data to learn from and tasks to be judged by, cut apart by time before anything may train on them.

    made = seal_round("support", share=0.2)
    made.dataset, made.benchmark

Each round takes the traces that no earlier one took. The latest of them are held out, with everything else that their
conversations and their questions occur in. What was held out once is never trained on. A dataset holds all that may be
trained on so far, without answers that were right once and fail now; a benchmark the tasks of its round alone, so that
it is always newer than what was learned.
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
"""Traces that a hold-out must have to be one."""


@dataclass(frozen=True, slots=True)
class Round:
    """What was made of the traces of one round."""

    number: int
    dataset: str
    """Id of the dataset with everything that may be trained on so far."""
    benchmark: str
    """Id of the benchmark with the tasks that were held out."""
    cut: float
    """Everything at or after this time was held out."""
    taken: int
    """Traces that were new in this round."""
    rows: int
    tasks: int
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    """Why traces are in neither, and how many."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_rounds(name: str) -> list[dict[str, Any]]:
    """Every round of a store, oldest first, with the ids that it took."""
    return list(read_records(rounds_file(name)))


def rounds_file(name: str) -> Path:
    """Where the rounds of a store are kept; it may not exist yet."""
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
    """Cut the new traces into rows to train on and tasks to be judged by; rows `without` those of some rounds.

    New traces whose ids are in `aside` become neither.
    """
    store = TraceStore(name)
    with exclusive(lock_beside(store.folder / _ROUNDS), f"the rounds of '{name}'"):
        before = read_rounds(name)
        used, aside = find_taken(before), set(aside)
        untaken = [one for one in store.read() if one["id"] not in used]
        fresh = sorted((one for one in untaken if one["id"] not in aside), key=_when)
        cut = _cut(fresh, share, name)
        # By time and not by number: traces of one moment are all on the same side.
        held = [one for one in fresh if _when(one)[0] >= cut]
        kept, left_out = _separate([one for one in fresh if _when(one)[0] < cut], held)
        tasks, poor = _make_tasks(held, min_reward, verifier)
        trained = find_trained(before, without)
        earlier = [one for one in store.read() if one["id"] in trained] if trained else []
        outdated = _find_outdated(fresh, earlier)
        current = [one for one in earlier if one["id"] not in outdated]
        rows = list(_make_rows(sorted([*current, *kept], key=_when), min_reward))
        left_out |= poor | {"to be trained on without a good answer": len(current) + len(kept) - len(rows)}
        left_out |= {_OUTDATED: len(outdated), "people disagree about it": len(untaken) - len(fresh)}
        dataset, benchmark = _add(store.folder / f"round-{len(before) + 1}", name, rows, tasks)
        found = {reason: count for reason, count in left_out.items() if count}
        made = Round(len(before) + 1, dataset, benchmark, cut, len(untaken), len(rows), len(tasks), found)
        # Written last: a process that is killed before leaves files that the next attempt replaces, and no round.
        with JsonlFile(store.folder / _ROUNDS) as file:
            ids = {"trained": [one["id"] for one in kept], "held_out": [one["id"] for one in held]}
            ids["aside"] = sorted({one["id"] for one in untaken} - {*ids["trained"], *ids["held_out"]})
            file.append({**made.to_dict(), "time": time.time(), **ids, "outdated": sorted(outdated)})
    return made


def find_taken(rounds: Sequence[dict[str, Any]]) -> set[str]:
    """The ids of all traces that some round has taken, whatever became of them."""
    return {id for one in rounds for key in ("trained", "held_out", "aside") for id in one.get(key, ())}


def find_trained(rounds: Sequence[dict[str, Any]], without: Collection[int] = ()) -> set[str]:
    """The ids of what may be trained on of all rounds but some: what a later one found outdated is not."""
    counted = [one for one in rounds if one["number"] not in without]
    outdated = {id for one in counted for id in one.get("outdated", ())}
    return {id for one in counted for id in one["trained"]} - outdated


def _find_outdated(fresh: Sequence[dict[str, Any]], earlier: Sequence[dict[str, Any]]) -> set[str]:
    """Earlier answers that were right and fail now: next to the new ones they would teach both and so neither."""
    new, known = sort_by_kind([*fresh, *list_corrections(fresh)], [as_taught(one) for one in earlier])
    over = {(one.kind, one.answer) for one in follow_settled(new, known) if one.is_over and one.others}
    return {trace["id"] for trace, one in zip(earlier, known, strict=True) if (one.kind, one.answer) in over}


def _when(trace: dict[str, Any]) -> tuple[float, str]:
    """A trace without a time is as old as can be: it must not decide where the newest begin."""
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
            f"the traces of '{name}' do not tell old from new: at least {1 - share:.0%} of them have the same time, or "
            "none. Import traces with times."
        )
    return cut


def _separate(
    older: Sequence[dict[str, Any]], held: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The older traces without conversations and questions that are held out as well."""
    conversations = {one["conversation"] for one in held if one["conversation"]}
    questions = {question for one in held if (question := question_of(one))}
    kept = [one for one in older if one["conversation"] not in conversations]
    apart = [one for one in kept if question_of(one) not in questions]
    return apart, {
        "its conversation continues in the hold-out": len(older) - len(kept),
        "its question is in the hold-out": len(kept) - len(apart),
    }


def _is_good(trace: dict[str, Any], min_reward: float | None) -> bool:
    if trace["messages"][-1]["role"] != "assistant" or not any(one["role"] == "user" for one in trace["messages"]):
        return False
    if min_reward is None:
        return True
    return trace["reward"] is not None and trace["reward"] >= min_reward


def _make_rows(traces: Sequence[dict[str, Any]], min_reward: float | None) -> Iterator[dict[str, Any]]:
    for one in map(as_taught, traces):
        if _is_good(one, min_reward):
            about = {"trace": one["id"], "time": one["time"], "reward": one["reward"], "source": one["source"]}
            about |= {"corrected": True} if CORRECTION in one else {}
            yield {"messages": one["messages"], "metadata": about}


def _make_tasks(
    held: Sequence[dict[str, Any]], min_reward: float | None, verifier: str
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Tasks of one question each; the answer that was given counts as right where it was good."""
    tasks: dict[str, dict[str, Any]] = {}
    several = poor = 0
    for one in map(as_taught, held):
        asked = [message for message in one["messages"] if message["role"] == "user"]
        if not _is_good(one, min_reward):
            poor += 1
        elif len(asked) != 1:
            several += 1
        else:
            expected = one["messages"][-1]["content"]
            # By its question: asked several times it is one task, with the answer that was good last.
            tasks[question_of(one)] = {
                "task_id": one["id"],
                "instruction": asked[0]["content"],
                "verifier": {"kind": "in_process", "fn_name": verifier, "expected": expected},
                "metadata": {"trace": one["id"], "time": one["time"]},
            }
    counts = {"held out without a good answer": poor, "held out with several questions": several}
    return list(tasks.values()), counts


def _add(folder: Path, name: str, rows: list[dict[str, Any]], tasks: list[dict[str, Any]]) -> tuple[str, str]:
    for what, found in (("row to train on", rows), ("task to be judged by", tasks)):
        if not found:
            raise DataError(f"this round would have no {what}. Import more traces, or lower --min-reward.")
    write_jsonl(folder / "train.jsonl", rows)
    write_jsonl(folder / "tasks.jsonl", tasks)
    workspace = Workspace()
    dataset = workspace.add("dataset", folder / "train.jsonl", name)
    benchmark = workspace.add("benchmark", folder / "tasks.jsonl", f"{name}-holdout")
    return dataset.rows.id, benchmark.rows.id
