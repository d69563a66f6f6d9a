"""Finds evaluation tasks in training batches.

    detector = LeakDetector({"test/tools": {"t-1": "start mail 7"}}, client.tokenizer)
    client.on_batch = detector.check     at every backward pass
    detector.summarise()                 {"test/tools": {"n": 1, "first": ["t-1"]}}

The rows of a config are scanned before the run by the same rule. This scan finds rows that a recipe adds, and files
that changed after the first scan. A task is reported before the backward pass, so that a killed process cannot lose it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..data.contamination import ProbeTask, TaskIndex, words_of

if TYPE_CHECKING:
    from ..backends.datum import Datum

_SHORTEST = 3
"""Minimum words of a task to search for; sampled answers contain shorter lines by chance."""
_NAMED = 10
"""Tasks named in the summary."""


class LeakDetector:
    """Searches training batches for the tasks of benchmarks."""

    def __init__(
        self,
        tasks: Mapping[str, Mapping[str, str]],
        tokenizer: Any,
        *,
        known: Mapping[str, Sequence[str]] | None = None,
        report: Callable[[dict[str, list[str]]], None] | None = None,
    ) -> None:
        """`tasks`: the text of each task by benchmark and id; `known`: tasks found before a resume.

        `report` is called once per task, by benchmark, before the backward pass.
        """
        self._tokenizer, self._report = tokenizer, report
        self._found = {name: dict.fromkeys(found) for name, found in (known or {}).items()}
        self._checked: set[int] = set()
        probes = (ProbeTask(id, name, text) for name, texts in tasks.items() for id, text in texts.items())
        self._index = TaskIndex(probe for probe in probes if len(words_of(probe.question)) >= _SHORTEST)

    def check(self, data: Sequence[Datum]) -> None:
        """Search each new sequence of a batch; repeated sequences are skipped."""
        new: dict[str, list[str]] = {}
        for datum in data if self._index.tasks else ():
            # Keep only a hash, because the tokens of a run are large.
            content = hash(datum.tokens.tobytes())
            if content in self._checked:
                continue
            self._checked.add(content)
            for task in self._index.find([self._tokenizer.decode(datum.tokens.tolist())]):
                found = self._found.setdefault(task.benchmark, {})
                if task.task_id not in found:
                    found[task.task_id] = None
                    new.setdefault(task.benchmark, []).append(task.task_id)
        if new and self._report is not None:
            self._report(new)

    def summarise(self) -> dict[str, dict[str, Any]] | None:
        """Number and first ids of the found tasks by benchmark; None without any."""
        return {name: {"n": len(tasks), "first": list(tasks)[:_NAMED]} for name, tasks in self._found.items()} or None
