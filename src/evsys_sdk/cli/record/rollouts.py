"""`evsys rollouts`: list training rollouts, show one, or compare two."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options import AT_LEAST_ONE, json_option, root_option
from ..output import emit, fit_table

if TYPE_CHECKING:
    from ...record.runs import RunRecord

type Line = dict[str, Any]


@click.command()
@click.argument("experiment")
@click.option("--arm", metavar="NAME", help="Only of this arm.")
@click.option("--step", type=int, help="Only rollouts of this training step.")
@click.option("--task", metavar="ID", help="Only rollouts of this task.")
@click.option("--failed", is_flag=True, help="Only failed rollouts, which have no reward.")
@click.option("--min-reward", type=float, help="Only rollouts with at least this reward.")
@click.option("--max-reward", type=float, help="Only rollouts with at most this reward.")
@click.option("--limit", type=AT_LEAST_ONE, default=20, help="List at most this many.")
@click.option("--show", "shown", metavar="ID", help="Show this rollout in full: STEP/TASK/SAMPLE, as in the list.")
@click.option("--diff", nargs=2, metavar="ID ID", help="Show the difference of two rollouts.")
@root_option
@json_option
def rollouts(
    experiment: str,
    arm: str | None,
    shown: str | None,
    diff: tuple[str, str] | None,
    limit: int,
    roots: tuple[str, ...],
    as_json: bool,
    **filters: Any,
) -> None:
    """List the training rollouts of EXPERIMENT (a path, an id, a name, or the folder of an arm).

    The latest step comes first. The first column is the ID that --show and --diff take.
    """
    runs = _find_runs(experiment, arm, roots)
    if shown is not None or diff is not None:
        if len(runs) > 1:
            names = ", ".join(run.name for run in runs)
            raise click.UsageError(f"several arms have rollouts ({names}). Name one with --arm.")
        [run] = runs
        if diff is not None:
            pair = [_find(run, id) for id in diff]
            emit({"rollouts": pair, "diff": _diff(*pair)}, as_json, lambda: _render_diff(*pair))
        else:
            line = _find(run, str(shown))
            emit(line, as_json, lambda: _render_whole(line))
        return
    lines = (line for run in runs for line in _read(run))
    summary, listed = _sum_up(lines, limit, partial(_matches, **filters))
    emit({**summary, "rollouts": listed}, as_json, lambda: _render_list(summary, listed, several=len(runs) > 1))


def _find_runs(reference: str, arm: str | None, roots: tuple[str, ...]) -> list[RunRecord]:
    """The arms of an experiment with recorded rollouts; the reference may also be the folder of an arm."""
    from ...errors import DataError, suggest
    from ...history.find import experiment_roots, find_experiment
    from ...record.layout import RunFiles
    from ...record.reader import ExperimentRecord

    if RunFiles(path := Path(reference)).starts.exists():
        reference, arm = str(path.resolve().parent), path.resolve().name
    path = find_experiment(reference, experiment_roots(roots) if roots else None)
    runs = ExperimentRecord(path).runs_on_disk
    names = [run.name for run in runs]
    if arm is not None and arm not in names:
        hint = suggest(arm, names) or f"It has {', '.join(names) or 'none'}."
        raise DataError(f"{path}: there is no arm '{arm}'. {hint}")
    chosen = [run for run in runs if arm in (None, run.name)]
    recorded = [run for run in chosen if run.has_rollouts]
    if not recorded:
        raise DataError(
            f"{path}: no rollouts are recorded. Recipes that sample (rl, sdft, opd) record "
            "them; answers to benchmarks are in the folder benchmarks/ of each arm."
        )
    return recorded


def _read(run: RunRecord) -> Iterator[Line]:
    for line in run.read_rollouts():
        if isinstance(line.get("step"), int):
            yield {"id": f"{line['step']}/{line.get('task_id')}/{line.get('sample')}", "arm": run.name, **line}


def _find(run: RunRecord, id: str) -> Line:
    from ...errors import DataError, suggest

    known: list[str] = []
    for line in _read(run):
        if line["id"] == id:
            return line
        known.append(line["id"])
    hint = suggest(id, known) or (f"The last one is '{known[-1]}'." if known else "")
    raise DataError(f"{run.folder}: there is no rollout '{id}'. {hint}".rstrip())


def _matches(
    line: Line,
    *,
    step: int | None,
    task: str | None,
    failed: bool,
    min_reward: float | None,
    max_reward: float | None,
) -> bool:
    reward = line.get("reward")
    return (
        (step is None or line["step"] == step)
        and (task is None or line.get("task_id") == task)
        and (not failed or reward is None)
        and (min_reward is None or (reward is not None and reward >= min_reward))
        and (max_reward is None or (reward is not None and reward <= max_reward))
    )


def _sum_up(lines: Iterator[Line], limit: int, matches: Callable[[Line], bool]) -> tuple[dict[str, Any], list[Line]]:
    """Counts, mean rewards and the latest `limit` matching lines, read as a stream."""
    rewards: dict[int, list[float]] = {}
    latest = deque[Line](maxlen=limit)
    recorded = matching = 0
    for line in lines:
        recorded += 1
        step_rewards = rewards.setdefault(line["step"], [])
        if (reward := line.get("reward")) is not None:
            step_rewards.append(reward)
        if matches(line):
            matching += 1
            latest.append(line)
    first, last = min(rewards, default=None), max(rewards, default=None)
    means: dict[int | None, float] = {step: sum(values) / len(values) for step, values in rewards.items() if values}
    summary = {
        "recorded": recorded,
        "found": matching,
        "failed": recorded - sum(map(len, rewards.values())),
        "first_step": first,
        "last_step": last,
        "first_reward": means.get(first),
        "last_reward": means.get(last),
    }
    return summary, sorted(latest, key=lambda line: -line["step"])


def _render_list(summary: dict[str, Any], lines: Sequence[Line], *, several: bool) -> str:
    failed = f", {summary['failed']} of them failed" if summary["failed"] else ""
    sentences = [f"{summary['recorded']} rollouts of steps {summary['first_step']} to {summary['last_step']}{failed}"]
    if summary["last_reward"] is not None and summary["first_reward"] is not None:
        sentences.append(f"mean reward {summary['first_reward']:.4g} at first, {summary['last_reward']:.4g} at last")
    if summary["found"] != summary["recorded"]:
        sentences.append(f"{summary['found']} match")
    head = "; ".join(sentences) + "."
    if not lines:
        return head
    rows = [(line["id"], line["arm"], _reward(line), line.get("tokens", ""), _outcome(line)) for line in lines]
    headers = ("id", "arm", "reward", "tokens", "answer")
    if not several:
        headers, rows = (headers[0], *headers[2:]), [(row[0], *row[2:]) for row in rows]
    more = f"\n{summary['found'] - len(lines)} more; see them with --limit." if summary["found"] > len(lines) else ""
    return f"{head}\n\n{fit_table(headers, rows)}{more}"


def _render_whole(line: Line) -> str:
    facts = [f"reward {_reward(line)}", str(line.get("status")), f"{line.get('tokens')} tokens"]
    if "seconds" in line:
        facts.append(f"{line['seconds']:.3g} s")
    parts = [f"{line['id']}  ({line['arm']}, group {line.get('group')}): {', '.join(facts)}"]
    if line.get("error"):
        at = f" (at {line['error_at']})" if line.get("error_at") else ""
        parts.append(f"{line['error']}{at}")
    parts += [f"--- {message.get('role', '?')}\n{_text(message)}" for message in line.get("messages", ())]
    if "dropped" in line:
        parts.append(_why_dropped(line))
    if line.get("info"):
        parts.append("--- info\n" + "\n".join(f"{name}: {value}" for name, value in line["info"].items()))
    return "\n\n".join(parts)


def _render_diff(one: Line, other: Line) -> str:
    head = f"- {one['id']}: reward {_reward(one)}\n+ {other['id']}: reward {_reward(other)}"
    for line in (one, other):
        if "dropped" in line:
            return f"{head}\n\n{line['id']}: {_why_dropped(line)}"
    return f"{head}\n\n" + ("\n".join(_diff(one, other)) or "Both have the same messages.")


def _diff(one: Line, other: Line) -> list[str]:
    """The unified diff of two conversations, without its header."""
    import difflib

    before, after = (
        "\n".join(f"[{message.get('role', '?')}]\n{_text(message)}" for message in line.get("messages", ()))
        for line in (one, other)
    )
    return list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2))[2:]


def _text(message: Line) -> str:
    from ...record.jsonable import dump_json
    from ...rollouts.rollout import text_of

    calls = message.get("tool_calls")
    called = f"\n{dump_json(calls, 'tool_calls', indent=2).decode()}" if calls else ""
    return f"{text_of(message)}{called}".strip()


def _outcome(line: Line) -> str:
    """The error of a rollout, else the last message of the policy."""
    if line.get("reward") is None and line.get("error"):
        return f"failed: {line['error']}"
    messages = line.get("messages") or ()
    answer = next((message for message in reversed(messages) if message.get("role") == "assistant"), None)
    if answer is None:
        return "(no answer)" if messages else f"({_why_dropped(line)})"
    return " ".join(_text(answer).split())


def _why_dropped(line: Line) -> str:
    reasons = {
        "share": "not kept: rollouts.share of the run is below 1",
        "size": "not kept: rollouts.max_mb of the run was reached",
    }
    return reasons.get(str(line.get("dropped")), "not kept")


def _reward(line: Line) -> str:
    reward = line.get("reward")
    return "none" if reward is None else f"{reward:.4g}"
